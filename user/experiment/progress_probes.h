// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/links.h"
#include "experiment/progress_programs.h"
#include "process/resolver.h"
#include "targets/target.h"
#include "util/result.h"

namespace speedbump::experiment {

// The probes of one progress point in native code: where calls are counted, or where those that are
// timed begin and end (decision 9). Where the kernel can aim a probe, files that processes outside
// the tree map as well are probed in the processes of the tree alone, until one is born: a child
// is to be counted from its first instruction, so its files are probed for everybody from then on.
class ProgressProbes {
  public:
    // `progress`: which of the points. `timed`: kLatency.
    ProgressProbes(std::shared_ptr<Programs> programs, uint32_t progress, bool timed,
                   targets::TargetLine line);

    // Probes the functions that the line names in these processes. An error is about all of them;
    // kNotFound: none has such a function.
    Result<void> attach(const std::vector<pid_t>& pids);
    // Deals with processes that have been born since, ended ones included.
    Result<void> follow(const std::vector<session::ProcessInfo>& processes);

  private:
    // Sites in one file that were found at one time.
    struct Batch {
        process::FileKey file;
        std::vector<std::pair<uint32_t, sb_progress_site>> sites; // by number
        std::vector<uint64_t> offsets;                            // of these, in the file
        bool wide = false;
        engine::Links wide_links;
        std::map<pid_t, engine::Links> narrow;
    };
    using Files = std::map<pid_t, std::set<process::FileKey>>;

    // What these processes map is added to `files`, new sites to batches_.
    Result<void> look(const std::vector<pid_t>& pids, Files& files);
    Result<void> add(const process::NativeMatch& match, Batch& batch);
    Result<void> add_timed(const process::NativeMatch& match, Batch& batch);
    Result<void> add_site(Batch& batch, uint64_t offset, sb_progress_site site);
    Result<engine::Links> probe(const Batch& batch, bool wide, pid_t pid);
    Result<void> widen(Batch& batch);

    std::shared_ptr<Programs> programs_;
    uint32_t progress_;
    bool timed_;
    targets::TargetsFile file_;
    process::Resolver resolver_;
    std::set<pid_t> known_;
    std::optional<Error> skipped_; // a function that can't be probed
    std::vector<Batch> batches_;
};

} // namespace speedbump::experiment
