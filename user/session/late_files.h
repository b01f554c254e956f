// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "process/resolver.h"

namespace speedbump::session {

// Files in which the processes of the tree are probed one by one, since others map them as well
// (docs/decisions/0001). A process that is born is probed there some time after its first
// instruction, or never. Each of them is to be told of once, and only where processes are born.
class LateFiles {
  public:
    void add(const process::FileKey& key, const std::string& name) { files_[key] = name; }
    void erase(const process::FileKey& key) { files_.erase(key); }
    // The tree has a new process.
    void born() { has_births_ = true; }
    std::vector<std::string> take_untold();
    // All that were taken.
    const std::vector<std::string>& told() const { return told_; }

  private:
    bool has_births_ = false;
    std::map<process::FileKey, std::string> files_;
    std::set<process::FileKey> known_;
    std::vector<std::string> told_;
};

} // namespace speedbump::session
