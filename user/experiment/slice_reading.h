// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

namespace speedbump::experiment {

// What happened in one slice.
struct SliceReading {
    struct Column {
        uint64_t calls = 0;
        uint64_t delays = 0;
        uint64_t injected_ns = 0; // by which its calls were slowed
    };
    // Of a progress point.
    struct Point {
        uint64_t units = 0;
        uint64_t since_ns = 0; // as Sliced's
    };
    std::vector<Point> points;
    std::vector<Column> targets;
};

} // namespace speedbump::experiment
