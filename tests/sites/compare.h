// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "cases.h"

namespace speedbump::sites {

// What differs between two runs of one case, in words; empty when nothing does.
std::string difference(const Slot& slot, const State& before, const Outcome& plain,
                       const Outcome& probed);

// What a probe on any instruction may change, and only a handler of signals or x87 code that looks
// for it sees (docs/probe-sites-measured.md).
struct Tolerated {
    bool trap_number = false; // in the frame of a signal: that of an earlier fault
    bool x87_record = false;  // of the last x87 instruction: its address and opcode
};
Tolerated tolerated(const Outcome& plain, const Outcome& probed);

} // namespace speedbump::sites
