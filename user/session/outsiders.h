// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <set>
#include <vector>

#include "process/file_identity.h"
#include "process/maps.h"

namespace speedbump::session {

// Finds out, a slice of time at a time, which of some files are also mapped by processes that do
// not belong to the tree.
class OutsiderScan {
  public:
    OutsiderScan() = default;
    OutsiderScan(std::vector<pid_t> outsiders, std::set<process::FileKey> files)
        : outsiders_(std::move(outsiders)), files_(std::move(files)) {}

    bool running() const { return next_ < outsiders_.size() && shared_.size() < files_.size(); }
    // Works for about `budget`.
    void advance(std::chrono::microseconds budget);
    // An outsider was seen mapping these while the scan ran.
    void note_shared(const std::set<process::FileKey>& files) {
        for (const process::FileKey& key : files)
            if (files_.contains(key)) shared_.insert(key);
    }
    const std::set<process::FileKey>& files() const { return files_; }
    const std::set<process::FileKey>& shared() const { return shared_; }

  private:
    std::vector<pid_t> outsiders_;
    std::set<process::FileKey> files_;
    std::set<process::FileKey> shared_;
    size_t next_ = 0;
};

// Whether it runs the same executable as this one.
bool runs_this_program(pid_t pid);

// Whether a mapping may be of a file; `wanted` as by FileBelow::wanted.
bool is_of(const process::Mapping& mapping, const process::FileKey& wanted);

// Which of `files` (FileBelow::wanted) the process has mapped executable.
std::set<process::FileKey> mapped_of(pid_t pid, const std::set<process::FileKey>& files);

} // namespace speedbump::session
