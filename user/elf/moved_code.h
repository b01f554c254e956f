// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace speedbump::elf {

// What a jump to another place takes.
inline constexpr size_t kJumpBytes = 5;
// The most that instructions which such a jump replaces can take: the last may begin with its end.
inline constexpr size_t kLongestRange = 19;
// The most bytes that move_range() makes: each branch of a byte's distance gets one of four.
inline constexpr size_t kLongestMoved = kLongestRange + 3 * 4 + kJumpBytes;

// How much of some code has to be seen to tell: the last instruction, and padding behind it.
inline constexpr size_t kRangeSight = 48;

// The first whole instructions of some code that are together at least as long as a jump.
struct Range {
    uint8_t length = 0;
    uint8_t code = 0;            // up to here; padding behind it
    std::vector<uint8_t> places; // where each instruction begins
    // Of a single instruction, a call or a jump that has a jump's length: only where it leads to is
    // changed. Its first byte stays, so that breakpoints of the kernel may come and go there.
    bool is_redirected = false;
    std::vector<uint8_t> branches; // those of its instructions that are branches
};

// The length of the first instruction where the next one always follows, as it works on registers
// and memory alone, or marks an entry; else 0.
uint8_t straight_on(std::basic_string_view<unsigned char> code);

// By how much the instructions of some code, each of which is straight_on(), lower the stack
// pointer: nothing where one of them does it in a way that is not known, or raises it.
std::optional<uint32_t> stack_growth(std::basic_string_view<unsigned char> code);

// Nothing where not all of them may be moved, to somewhere within reach: they work on registers and
// memory alone, or are branches. What follows an instruction that never goes on to the next one
// must be padding, at least up to an address that is a multiple of 16; `address`: of `code`.
std::optional<Range> movable_range(std::basic_string_view<unsigned char> code, uint64_t address);

struct MovedRange {
    std::basic_string<unsigned char> bytes; // goes on behind the range
    std::vector<uint8_t> places;            // of the same instructions
};

// Code that does the same as a movable range at `from`, for an address `to`. Of one that is
// redirected, what follows once it has been executed: a jump to where it led. Nothing when what it
// refers to is out of reach.
std::optional<MovedRange> move_range(std::basic_string_view<unsigned char> code, uint64_t from,
                                     uint64_t to);

} // namespace speedbump::elf
