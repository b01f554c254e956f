// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "elf/placement.h"
#include "elf/symbols.h"
#include "util/result.h"

namespace speedbump::elf {

// What a jump to another place takes.
inline constexpr size_t kJumpBytes = 5;
// The most that instructions which such a jump replaces can take: the last may begin with its end.
inline constexpr size_t kLongestRange = 19;

// Chooses for each function (file offsets of entries in `file`) whole instructions, together at
// least as long as a jump, that can be replaced by one while the program runs: behind the first
// instruction, where others put their probes, and apart from where place_probes() puts ours; in
// straight-line code from the entry that each call passes once; nothing in the file leads behind
// their beginning; and what they do does not depend on where they lie, but for addresses of data
// that can be adjusted. kUnsupported, with the reason as message, where there are none.
std::vector<Result<ProbeSite>> place_jumps(const ElfFile& file, std::span<const uint64_t> entries,
                                           const PlacementOptions& options);

// The first whole instructions of `code` that are at least as long as a jump, if all of them may be
// moved: how many bytes they are, and where each begins.
struct Range {
    uint8_t length = 0;
    std::vector<uint8_t> places;
};
std::optional<Range> movable_range(std::basic_string_view<unsigned char> code);

// The same instructions for another address: they have the same lengths there. Nothing when what
// they refer to is out of reach.
std::optional<std::basic_string<unsigned char>> moved_range(
    std::basic_string_view<unsigned char> range, uint64_t from, uint64_t to);

} // namespace speedbump::elf
