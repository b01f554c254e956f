// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "elf/symbols.h"

namespace speedbump::elf {

constexpr uint64_t kLongestStretch = 207; // bytes that are watched

// Code that is executed one instruction after the other from a function's entry on, but for what
// leaves it at its branches. Addresses are those of the file.
struct Stretch {
    uint64_t entry = 0;
    uint64_t end = 0;         // after the last instruction
    uint64_t watched_end = 0; // up to here it matters whether something jumps in
    uint64_t function_end = 0;
    std::vector<uint64_t> branches; // addresses of its own, ascending
    // The answer: the first place after the entry that something may jump to, and what.
    uint64_t first_target = UINT64_MAX;
    const char* obstacle = nullptr;
};

// Finds for each stretch (ascending by entry) whether a direct branch of the whole file, a jump
// table, a pointer or another symbol may lead past its entry. What can't be searched counts as
// found.
void find_jumps_into(const ElfFile& file, std::span<Stretch> stretches);

} // namespace speedbump::elf
