// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>

#include "util/clock.h"

namespace speedbump::inject {

// Since when the threads of a process have been waiting, without touching them. To be used by one
// thread.
class WaitWatch {
  public:
    explicit WaitWatch(pid_t pid) : pid_(pid) {}

    // A wait in which a thread was seen.
    struct Wait {
        uint64_t switches = 0; // how often the thread had given up the CPU
        Clock::time_point begin;
    };
    // Nothing when the thread woke up meanwhile, or when there is no telling: the scheduler forgets
    // when a thread ran last that it has moved to another CPU. Asked often enough it is known from
    // the next wait on, whose beginning is then seen.
    std::optional<Wait> look(pid_t tid);

  private:
    struct Seen {
        uint64_t switches = 0;
        Clock::time_point when, looked; // first, and last
        bool from_beginning = false;    // not the wait in which the thread was found first
    };
    pid_t pid_;
    std::map<pid_t, Seen> seen_;
};

// Calls that a stop would disturb, by thread, as they were met: one that is still the same may last
// for ever, as a wait for a lock does.
class CallsInTheWay {
  public:
    // Notes that it is in such a call; true: in the one that it was in before.
    bool note(pid_t pid, pid_t tid);

  private:
    std::map<pid_t, uint64_t> switches_;
};

} // namespace speedbump::inject
