// SPDX-License-Identifier: MIT
#include "stacks/thread_account.h"

#include <algorithm>
#include <utility>

namespace speedbump::stacks {

namespace {

constexpr uint64_t kLongestTick = 10'000'000; // ns, with 100 Hz

// How often.
uint64_t left_by_itself(const sb_thread& thread) {
    return thread.still.switches - thread.preempted;
}

// Clocks of two CPUs need not agree when a thread goes from one to the other.
uint64_t since(uint64_t now, uint64_t before) {
    return now > before ? now - before : 0;
}

} // namespace

bool is_asleep(const sb_thread& thread) {
    return thread.on_cpu == 0 && thread.runnable == 0;
}

bool is_same(const sb_still& one, const sb_still& other) {
    return one.switches == other.switches && one.started_ns == other.started_ns;
}

void ThreadAccount::book(const sb_thread& thread, uint64_t now_ns) {
    const sb_thread before = std::exchange(last, thread);
    const uint64_t elapsed = since(now_ns, std::exchange(last_ns, now_ns));
    if (before.still.started_ns != thread.still.started_ns) {
        *this = {};
        last = thread;
        last_ns = now_ns;
        return;
    }
    const uint64_t waited = since(thread.waited_ns, before.waited_ns);
    waiting_ns += waited;
    // What a thread runs on another CPU is booked at that one's ticks: too little at one look, too
    // much at the next.
    const uint64_t busy = waited + since(thread.ran_ns, before.ran_ns) + std::exchange(owed_ns, 0);
    owed_ns = std::min(since(busy, elapsed), kLongestTick);
    // To sleep is to leave a CPU of one's own will. Else the rest is time in which interrupts, or a
    // hypervisor, had the CPU.
    if (!is_asleep(before) && left_by_itself(before) == left_by_itself(thread)) return;
    asleep_ns += since(elapsed, busy);
}

void ThreadAccount::wait_at(const Pending& stack) {
    waits_at = stack;
    waits_at->stack.thread.active = true;
}

uint64_t take_periods(uint64_t& ns, std::chrono::nanoseconds period) {
    const auto length = static_cast<uint64_t>(period.count());
    const uint64_t periods = ns / length;
    ns -= periods * length;
    return periods;
}

} // namespace speedbump::stacks
