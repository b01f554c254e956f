// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cases.h"
#include "prober.h"

namespace speedbump::sites {

constexpr size_t kDetail = 300;

// How the states of one slot ended. Memory that both processes have.
struct Tally {
    uint64_t states;          // compared
    uint64_t varying;         // not compared: two runs without a probe differ
    uint64_t out_of_reach;    // not compared: may_return_to() not their stack pointer
    uint64_t faulted;         // without a probe, that is rightly
    uint64_t illegal;         // of them with SIGILL: this processor lacks the instruction
    uint64_t different;       // with the probe
    uint64_t skipped;         // of them as though the instruction did nothing
    uint64_t different_after; // once the probe was out again
    uint64_t trap_numbers;    // tolerated, see compare.h
    uint64_t x87_records;
    char detail[kDetail]; // of the first difference
};

// What became of one slot.
struct SlotResult {
    Tally tally{};
    std::vector<uint64_t> hits; // by probe; each should be the number of all states
    std::vector<int> refused;   // by probe: the kernel's errno
    bool died_without_probe = false;
    bool died = false; // the process, with the probe
};

// Runs each slot from `states` random states without probes, twice, with probes, and once more when
// they are gone.
Result<std::vector<SlotResult>> run_slots(Prober& prober, const std::vector<Slot>& slots,
                                          size_t states, uint64_t seed);

} // namespace speedbump::sites
