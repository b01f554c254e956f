// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>

#include "inject/fire.h"
#include "inject/payload.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/result.h"

// What is the same whatever a new thread in a target is for.
namespace speedbump::inject {

using std::chrono::milliseconds;

// A child of vfork() is on its parent's memory, and stack, until it calls exec: there it must not
// be entered.
Result<void> wait_for_own_memory(pid_t pid, Clock::time_point deadline);

// Waits until the new thread has made its bootstrap socket.
Result<Region> wait_for_thread(pid_t pid, Fire& fire, const FireReport& report, int pid_fd);

// Hands over to the new thread, which waits behind a descriptor of the process.
Result<void> start_thread(pid_t pid, const Fd& pid_fd, int its_fd,
                          const std::function<Result<void>(int bootstrap)>& hand);

// Why the thread has given up before it took the interpreter's lock, if it has just now.
std::optional<Error> read_failure(pid_t pid, uint64_t region);

// Takes the stub out, and unless the thread is `serving`, waits until the region is gone too.
void wait_until_clean(pid_t pid, Fire& fire, uint64_t region, bool serving);

} // namespace speedbump::inject
