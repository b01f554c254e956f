// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>
#include <time.h>

#include <chrono>
#include <cstdint>
#include <optional>

namespace speedbump {

// The one clock for intervals: CLOCK_MONOTONIC, the same that BPF's bpf_ktime_get_ns reads.
using Clock = std::chrono::steady_clock;

// Nanoseconds of CLOCK_MONOTONIC, as they cross the C boundary.
inline uint64_t monotonic_ns() {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
            .count());
}

// CPU time of this thread, up to now: getrusage() knows only what was up to the last tick.
inline std::chrono::nanoseconds thread_cpu_time() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// CPU time of a process, its ended threads included, up to now. Nothing: it is gone.
inline std::optional<std::chrono::nanoseconds> process_cpu_time(pid_t pid) {
    clockid_t clock{};
    timespec time{};
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &time) != 0)
        return std::nullopt;
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// A time as a number of nanoseconds, to calculate with.
inline double ns(std::chrono::nanoseconds time) {
    return static_cast<double>(time.count());
}

} // namespace speedbump
