// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>

#include "inject/stopped.h"

namespace speedbump::inject {

// What became of the wish to stop a thread.
enum class Hold {
    kAsked, // and it does not stand yet; only the end of the calling thread gives it back
    kHeld,
    kStoppedBySignal, // SIGSTOP and its like, before us; it is released again
    kGone,
    kRefused, // by the kernel
};

// The time between two looks whether threads stand; before the first one, too: they may be on the
// CPU of the calling thread, which goes before them, and what they sleep in may end by itself
// meanwhile.
class BetweenLooks {
  public:
    // Sleeps, for longer each time. True: for so long by now that more than that is worth a look.
    bool wait();

  private:
    std::chrono::nanoseconds pause_{std::chrono::microseconds(10)};
};

// Asks a thread to stop, by ptrace. `seen`: what was seen of it before.
Hold ask_to_stop(pid_t pid, pid_t tid, Seen* seen = nullptr);
// Whether one that was asked stands. `may_have_ended`: to be looked whether it has, too.
Hold look_at_asked(pid_t pid, pid_t tid, bool may_have_ended, Seen* seen = nullptr);
// Both, until it is given up (is_given_up()). `since`: from when on it may have stood still.
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
