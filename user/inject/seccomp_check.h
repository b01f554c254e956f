// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <optional>
#include <vector>

#include "inject/seccomp_filter.h"
#include "util/result.h"

namespace speedbump::inject {

// Why the seccomp filters of a thread forbid what an attach does on it, or nothing. `mode` is the
// thread's (ThreadStatus::seccomp); the thread is held by the caller. A thread that it makes has
// the same filters. `calls`: what the attach makes.
std::optional<Error> seccomp_obstacle(pid_t pid, pid_t tid, int mode,
                                      const std::vector<NeededCall>& calls);

} // namespace speedbump::inject
