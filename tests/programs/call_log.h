// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

// When calls of a function began and ended (CLOCK_MONOTONIC), as the program that makes them wrote
// it to a file that is mapped by all: puppet.cpp and call_log.py.
inline constexpr size_t kLoggedCalls = 1 << 21;

struct LoggedCall {
    int64_t begin_ns;
    int64_t end_ns;
};

struct CallLog {
    uint64_t count; // calls so far; of more than there is room for, the last ones are there
    uint64_t reserved;
    LoggedCall calls[kLoggedCalls];
};
