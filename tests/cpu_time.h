// SPDX-License-Identifier: MIT
#pragma once

#include <sys/time.h>

#include <chrono>
#include <cstdlib>
#include <ctime>

// How long the code under test works, for tests that wait for a CPU behind others: the clock on the
// wall would judge those.
namespace speedbump {

// The CPU time of this process, as a clock of the standard library (its threads' together).
struct CpuClock {
    using duration = std::chrono::nanoseconds;
    using rep = duration::rep;
    using period = duration::period;
    using time_point = std::chrono::time_point<CpuClock>;
    static constexpr bool is_steady = true;

    static time_point now() {
        timespec used{};
        ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
        return time_point(std::chrono::seconds(used.tv_sec) +
                          std::chrono::nanoseconds(used.tv_nsec));
    }
};

// Longer than anything takes that comes to an end, however seldom it has a CPU.
inline constexpr std::chrono::minutes kWithoutEnd{5};

// Ends this process by SIGPROF when it has used this much more CPU time: a loop that does not end.
// What waits for ever is ended by ctest's limit.
inline void limit_cpu_time(std::chrono::seconds from_now) {
    const itimerval limit{{0, 0}, {from_now.count(), 0}};
    if (::setitimer(ITIMER_PROF, &limit, nullptr) != 0) std::abort();
}

} // namespace speedbump
