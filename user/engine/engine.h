// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "abi.h"
#include "elf/placement.h"
#include "util/result.h"

namespace speedbump::engine {

using std::chrono::nanoseconds;

// Live settings of one target; times count from the moment the session is armed.
struct TargetSettings {
    nanoseconds delay{0};
    uint64_t every = 1;
    nanoseconds start{0};
    nanoseconds duration{0}; // 0: without end
    uint64_t root_mask = ~uint64_t{0};
    bool enabled = true;
};

// What happened at one target in one process since the session began.
struct Counts {
    uint32_t target = 0;
    pid_t process = 0; // 0: could not be told apart
    uint64_t hits = 0;
    uint64_t delays = 0;
    nanoseconds requested{0};
    nanoseconds measured{0};

    // Adds what was counted; whose it is stays. Times stop at the largest there is: some were
    // written by targets.
    Counts& operator+=(const Counts& other) {
        hits += other.hits;
        delays += other.delays;
        requested += std::min(other.requested, nanoseconds::max() - requested);
        measured += std::min(other.measured, nanoseconds::max() - measured);
        return *this;
    }
};

// A Python function that a line of the targets file selects in one process.
struct PythonMatch {
    pid_t process = 0;
    size_t line = 0;
    std::string module;
    std::string name;
    std::string file;
};

// One place to probe, already resolved.
struct Probe {
    uint32_t target = 0;
    uint64_t file_offset = 0;
    elf::SiteKind kind = elf::SiteKind::kSingleStep;
};

// The floor of each kind of site on this host: what a hit costs with a delay of 0.
struct Floors {
    nanoseconds by_kind[3] = {};
};

// Writes settings into an entry of a table that hooks read meanwhile (bpf/abi.h). Windows are
// relative to `window_origin_ns` (CLOCK_MONOTONIC); 0: not armed yet, so none.
void write_target(sb_target& entry, const TargetSettings& settings, uint64_t window_origin_ns,
                  bool wide);

} // namespace speedbump::engine
