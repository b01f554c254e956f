// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

// Instructions of aarch64 as words (Arm Architecture Reference Manual, C4.1).
namespace speedbump::elf {

inline constexpr uint64_t kWordBytes = 4;

inline bool is_word(uint32_t word, uint32_t mask, uint32_t value) {
    return (word & mask) == value;
}

// The `bits` of a word from `low` on, as a signed number.
inline int64_t signed_field(uint32_t word, unsigned low, unsigned bits) {
    return static_cast<int64_t>(uint64_t{word} << (64 - low - bits)) >> (64 - bits);
}

// b
inline bool is_branch(uint32_t word) {
    return is_word(word, 0xfc000000, 0x14000000);
}

// By how much the instruction pointer changes with a branch, and with a conditional one (b.cond,
// bc.cond, cbz, cbnz, tbz, tbnz) that is taken; 0: it is none, or one onto itself.
inline int64_t branch_distance(uint32_t word) {
    return is_branch(word) ? signed_field(word, 0, 26) * 4 : 0;
}
inline bool is_conditional_branch(uint32_t word) {
    return is_word(word, 0xff000000, 0x54000000) || is_word(word, 0x7c000000, 0x34000000);
}
inline int64_t condition_distance(uint32_t word) {
    if (!is_conditional_branch(word)) return 0;
    return is_word(word, 0x7e000000, 0x36000000) ? signed_field(word, 5, 14) * 4
                                                 : signed_field(word, 5, 19) * 4;
}

} // namespace speedbump::elf
