// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "util/fd.h"
#include "util/result.h"

namespace speedbump::session {

// A process of its own that outlives this one for a moment and removes files when it is gone,
// however it ended. It shares no other descriptor, terminal or process group with this program.
class ControlGuard {
  public:
    // Forks: only while this program has a single thread, and before it opens what must close with
    // it. The guard will remove `names` in `directory`, and the directory `path` once it is empty.
    static Result<ControlGuard> start(const Fd& directory, const std::string& path,
                                      const std::vector<std::string>& names);
    ControlGuard(ControlGuard&& other) noexcept;
    ControlGuard& operator=(ControlGuard&&) = delete;
    // Dismisses the guard; the files are the caller's to remove.
    ~ControlGuard();

    pid_t pid() const { return pid_; }

  private:
    ControlGuard() = default;
    pid_t pid_ = -1;
    Fd life_line_; // the guard waits for its end of this to close
};

// What the guard does, for an owner that ends in order.
void remove_control_files(const Fd& directory, const std::string& path,
                          const std::vector<std::string>& names);

} // namespace speedbump::session
