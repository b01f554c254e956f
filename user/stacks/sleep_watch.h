// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "util/clock.h"
#include "util/fd.h"

struct perf_event_mmap_page;

namespace speedbump::stacks {

// Tells whether a thread has run since it was last looked at, for the price of a load: the kernel
// counts how often it put the thread on a CPU in the page of a perf event that counts nothing.
// A thread that didn't run did not change its stack.
class SleepWatch {
  public:
    // Opens nothing before it is asked: of most threads that is never.
    SleepWatch(pid_t pid, pid_t tid) : pid_(pid), tid_(tid) {}

    // 0: may be running. Else the thread is off the CPUs, blocked in a system call, and stays so
    // as long as this gives the same number: it executes nothing of the program meanwhile. Without
    // the right to open the event always 0.
    uint32_t asleep();

  private:
    struct Unmap {
        void operator()(perf_event_mmap_page* page) const;
    };
    void open();
    bool is_blocked() const;

    pid_t pid_;
    pid_t tid_;
    bool was_opened_ = false;
    Fd event_;
    std::unique_ptr<perf_event_mmap_page, Unmap> page_;
    Fd system_call_; // /proc/PID/task/TID/syscall
    uint32_t asleep_at_ = 0;
    uint32_t looked_at_ = 0;
    Clock::time_point next_look_{};
    Clock::duration pause_{};
};

} // namespace speedbump::stacks
