// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "engine/links.h"
#include "experiment/progress_programs.h"
#include "experiment/progress_sites.h"
#include "inject/target_lock.h"
#include "util/result.h"

namespace speedbump::experiment {

// The probes of one progress point in native code: where calls and marks are counted, or where
// calls that are timed begin and end (decision 9). Where the kernel can aim a probe, files that
// processes outside the tree map as well are probed in the processes of the tree alone, until one
// is born: a child is to be counted from its first instruction, so its files are probed for
// everybody from then on.
class ProgressProbes {
  public:
    // `progress`: which of the points.
    ProgressProbes(std::shared_ptr<Programs> programs, uint32_t progress,
                   std::unique_ptr<ProgressSites> sites);

    // Probes the sites in these processes. An error is about all of them; kNotFound: none has any.
    Result<void> attach(const std::vector<pid_t>& pids);
    // Deals with processes that have been born since, ended ones included.
    Result<void> follow(const std::vector<session::ProcessInfo>& processes);

  private:
    // Sites in one file that were found at one time.
    struct Batch {
        process::FileKey file;
        process::FileBelow below;
        bool is_wide = false;
        std::vector<std::pair<uint32_t, sb_progress_site>> sites; // by number
        std::vector<engine::UprobePlace> places;                  // of these, as narrow probes
        engine::ProbeSets sets; // narrow probes are set 0, wide ones set 1
        engine::Links wide;
        std::map<pid_t, engine::Links> narrow;
    };
    using Files = std::map<pid_t, std::set<process::FileKey>>;

    // What these processes map is added to `files`, new sites to batches_.
    Result<void> look(const std::vector<pid_t>& pids, Files& files);
    // The turns of those that a probe of these places reaches, in which nobody else puts a jump
    // there: a process, -1: all who map the file. kUnsupported where one has a jump there.
    Result<std::vector<inject::Turn>> keep_jumps_out(const Batch& batch, pid_t only) const;
    Result<engine::Links> probe(const Batch& batch, pid_t only);
    void change(Batch& batch, const engine::ProbeSets& sets);
    void leave_to_twins(Batch& batch) const;
    Result<void> widen(Batch& batch);

    std::shared_ptr<Programs> programs_;
    uint32_t progress_;
    std::unique_ptr<ProgressSites> sites_;
    std::set<pid_t> known_;
    std::vector<Batch> batches_;
};

} // namespace speedbump::experiment
