// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "elf/placement.h"
#include "process/resolver.h"
#include "stacks/profile.h"
#include "targets/target.h"
#include "util/result.h"

namespace speedbump::discover {

// A function of a file: its path and the offset of its entry.
using FunctionPlace = std::pair<std::string, uint64_t>;

// Which functions may be counted: those of the files that processes map, as far as they are worth
// reading.
class SurveyCandidates {
  public:
    SurveyCandidates(const targets::TargetsFile& file, const elf::PlacementOptions& placement)
        : resolver_(file, placement, process::Placing::kLater) {}

    // Takes in what the lines select in a process. Of files that are not wanted nothing is read.
    Result<void> look_at(pid_t pid, const process::Resolver::WantsFile& wants);
    // Those that `wants` is to be asked for where nothing was asked for by name: files that stacks
    // showed functions of, and small ones.
    static process::Resolver::WantsFile worth_reading(const stacks::Profile& seen);
    // Of the processes that were looked at only these are of interest.
    void keep_processes(const std::set<pid_t>& pids);

    // All of them: those that were seen come first, then others, of the files that these are in
    // before those of other files. To be called once.
    struct Ordered {
        std::vector<process::Candidate> candidates;
        size_t seen = 0;     // of them
        size_t left_out = 0; // more than these: the least worth
        // Seen, and in no process that is of interest.
        std::vector<FunctionPlace> elsewhere;
    };
    Ordered take_ordered(const stacks::Profile& seen, size_t max_unseen, size_t max);

    // The files with candidates, of each process.
    const std::map<pid_t, std::set<process::FileKey>>& files() const { return files_; }
    std::set<std::string> paths() const; // of these
    size_t not_wanted() const { return not_wanted_.size(); }
    std::vector<process::Skipped>& skipped() { return skipped_; }
    process::Resolver& resolver() { return resolver_; }

  private:
    process::Resolver resolver_;
    std::map<pid_t, std::set<process::FileKey>> files_;
    std::vector<process::Candidate> candidates_;
    std::vector<process::Skipped> skipped_;
    std::set<std::string> not_wanted_; // files
};

// The functions that stacks showed, but in none of these processes.
std::set<FunctionPlace> seen_elsewhere(const stacks::Profile& seen, const std::set<pid_t>& pids);

} // namespace speedbump::discover
