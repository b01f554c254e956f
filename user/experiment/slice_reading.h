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
    std::vector<uint64_t> units; // of each progress point
    std::vector<Column> targets;
};

} // namespace speedbump::experiment
