// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>

#include "inject/stopped.h"

namespace speedbump::inject {

// What became of the wish to stop a thread.
enum class Hold {
    kHeld,
    kStoppedBySignal, // SIGSTOP and its like, before us; it is released again
    kGone,
    kStuck,   // it did not stop in time; only the end of the calling thread gives it back
    kRefused, // by the kernel
};

// Stops one thread by ptrace. `since`: from when on it may have stood still. `seen`: what was seen
// of it before.
Hold hold_thread(pid_t pid, pid_t tid, std::chrono::steady_clock::time_point deadline,
                 std::chrono::steady_clock::time_point& since, Seen* seen = nullptr);
void release_thread(pid_t tid);

// Sleeps for half to one and a half times as long, at random: a thread that sleeps and wakes by the
// clock, too, would be met at the same point of its round time and again.
void sleep_about(std::chrono::nanoseconds duration);

// Runs `work` on a thread of its own with real-time priority where that is allowed: a stop is as
// long as we take to end it. No other thread's wait() sees what it traces.
void on_tracer_thread(const std::function<void()>& work);

} // namespace speedbump::inject
