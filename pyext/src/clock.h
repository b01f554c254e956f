// SPDX-License-Identifier: MIT
#pragma once

#include <ctime>

#include <cstdint>

namespace speedbump::python {

// CLOCK_MONOTONIC in nanoseconds, from the vdso: 22 ns where rdtsc is 10, and it needs neither an
// invariant counter nor a frequency.
inline uint64_t now_ns() {
    timespec time;
    ::clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_nsec);
}

} // namespace speedbump::python
