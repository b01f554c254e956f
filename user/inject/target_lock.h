// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>

#include "util/fd.h"
#include "util/result.h"

namespace speedbump::inject {

// One attach at a time per process, in the order in which they ask for it: a lock that ends with
// its holder. It is some bytes of a file in this user's own directory (util/control_directory.h),
// so nobody else can hold it, and which ones depends on the process alone, not on the /proc through
// which it is seen. `pid_fd` is the process's. kTimeout: another attach is under way.
Result<Fd> lock_target(pid_t pid, const Fd& pid_fd, std::chrono::steady_clock::time_point deadline);

} // namespace speedbump::inject
