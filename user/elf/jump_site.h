// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "elf/placement.h"
#include "elf/symbols.h"
#include "util/result.h"

namespace speedbump::elf {

// Chooses for each function (file offsets of entries in `file`) a range of instructions
// (elf/moved_code.h) that can be replaced by a jump while the program runs: straight-line code from
// the entry leads to it, so that each call passes it once; nothing in the file leads behind its
// beginning. It lies behind the first instruction, where others put their probes, and apart from
// where place_probes() puts ours, unless it is one that is redirected, which may lie there.
// kUnsupported, with the reason as message, where there is none.
std::vector<Result<ProbeSite>> place_jumps(const ElfFile& file, std::span<const uint64_t> entries,
                                           const PlacementOptions& options);

} // namespace speedbump::elf
