// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <variant>
#include <vector>

#include "stacks/profile.h"
#include "stacks/thread_account.h"
#include "util/clock.h"

namespace speedbump::stacks {

// What the threads of a process were seen running with, until it is known for how long. A CPU's
// clock that is late by several periods ticks once (hrtimer_forward_now() in
// perf_swevent_hrtimer(), kernel/events/core.c): wherever a hypervisor has given the CPU to
// another. The kernel's account of the CPU time of the process has all of it.
class RunningAccount {
  public:
    using Sample = std::variant<Pending, Unread>;

    // Of the process with this PID, from now on.
    explicit RunningAccount(pid_t pid)
        : pid_(pid), ran_before_(process_cpu_time(pid).value_or(std::chrono::nanoseconds(0))) {}

    // Takes all that the process has run up to now into account.
    void look() { ran_ = process_cpu_time(pid_).value_or(ran_); }
    // A sample of a thread on a CPU, or why there is none of it.
    void add(Sample sample) { samples_.push_back(std::move(sample)); }
    // Hands over what was added since the last time, each with the periods that it stands for.
    void settle(std::chrono::nanoseconds period,
                const std::function<void(Sample&&, uint64_t)>& count);

  private:
    pid_t pid_;
    std::chrono::nanoseconds ran_before_;
    std::chrono::nanoseconds ran_ = ran_before_; // at the last look
    uint64_t counted_ = 0;                       // periods, so far
    std::vector<Sample> samples_;
};

} // namespace speedbump::stacks
