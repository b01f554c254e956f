// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <utility>

#include "util/clock.h"
#include "util/fd.h"
#include "util/result.h"

namespace speedbump::inject {

// One attach at a time per process, in the order in which they ask for it: a lock that ends with
// its holder. It is some bytes of a file in this user's own directory (util/control_directory.h),
// so nobody else can hold it, and which ones depends on the process alone, not on the /proc through
// which it is seen. `pid_fd` is the process's. kTimeout: another attach is under way.
Result<Fd> lock_target(pid_t pid, const Fd& pid_fd, std::chrono::steady_clock::time_point deadline);

// One's turn to change a process, by that lock: a session that stops its threads finds nobody
// else's tracer there, and what it has looked at stays until it has changed it.
class Turn {
  public:
    // ESRCH as errno: it is gone; else as lock_target().
    static Result<Turn> take(pid_t pid, Clock::time_point deadline);
    // For what can't wait until there is a place for the lock, as after the user's logout, such as
    // taking out what was put in: then without one. Who puts something in has one, or is refused.
    static Result<Turn> take_if_any(pid_t pid, Clock::time_point deadline);

    pid_t pid() const { return pid_; }
    const Fd& pid_fd() const { return pid_fd_; }

  private:
    Turn(pid_t pid, Fd pid_fd) : pid_(pid), pid_fd_(std::move(pid_fd)) {}
    static Result<Turn> of(pid_t pid);

    pid_t pid_;
    Fd pid_fd_;
    Fd lock_;
};

} // namespace speedbump::inject
