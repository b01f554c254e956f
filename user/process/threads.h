// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace speedbump::process {

// Where glibc keeps the id of a thread: offsetof(struct pthread, tid). threads_MACHINE.cpp.
extern const uint64_t kPthreadTid;

// The threads of a process, by number; empty when it is gone. One that ends meanwhile ends the
// list.
std::vector<pid_t> read_threads(pid_t pid);

// For how long a thread has had a CPU since it began, and has waited for one while it could have
// run (/proc/PID/task/TID/schedstat); nothing when it is gone. While it runs, or waits, the kernel
// adds to these at ticks and switches only.
struct ThreadTimes {
    std::chrono::nanoseconds ran{0};
    std::chrono::nanoseconds waited{0};
};
std::optional<ThreadTimes> read_thread_times(pid_t pid, pid_t tid);
// The sums over the threads that a process has.
ThreadTimes read_all_thread_times(pid_t pid);

} // namespace speedbump::process
