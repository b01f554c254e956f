// SPDX-License-Identifier: MIT
#include "elf/jump_tables_aarch64.h"

#include <algorithm>

#include "elf/words_aarch64.h"

namespace speedbump::elf {
namespace {

constexpr uint64_t kMaxTable = 4096;

uint32_t base_of(uint32_t word) {
    return word >> 5 & 31;
}
uint32_t other_of(uint32_t word) {
    return word >> 16 & 31;
}

// adr, adrp
uint64_t address_of(const Placed& one) {
    const uint32_t word = one.word;
    const int64_t distance = signed_field(word, 5, 19) * 4 + (word >> 29 & 3);
    if (is_word(word, 0x9f000000, 0x10000000)) return one.address + static_cast<uint64_t>(distance);
    return (one.address & ~uint64_t{0xfff}) + static_cast<uint64_t>(distance * 4096);
}
bool takes_address(uint32_t word) {
    return is_word(word, 0x1f000000, 0x10000000);
}

// Whether it may write this general register. By the top level of the encodings.
bool may_write(uint32_t word, uint32_t name) {
    if (is_branch(word) || is_conditional_branch(word)) return false;
    if (is_call(word)) return name <= 18 || name == 30;
    const uint32_t to = word & 31, base = word >> 5 & 31, second = word >> 10 & 31;
    if (!is_word(word, 0x0a000000, 0x08000000)) return to == name; // no load, no store
    const bool is_vector = is_word(word, 0x04000000, 0x04000000);
    if (is_word(word, 0x3a000000, 0x28000000)) { // pairs
        const bool loads = !is_vector && is_word(word, 0x00400000, 0x00400000);
        return (loads && (to == name || second == name)) ||
               (is_word(word, 0x00800000, 0x00800000) && base == name);
    }
    const bool stores = is_vector || is_word(word, 0x00c00000, 0);
    if (is_word(word, 0x3b000000, 0x39000000)) return !stores && to == name; // scaled offset
    if (is_word(word, 0x3b200c00, 0x38000000) || is_word(word, 0x3b200c00, 0x38200800))
        return !stores && to == name; // unscaled offset, or one in a register
    return to == name || base == name || other_of(word) == name;
}

Line up_to(const Line& line, const Placed& end) {
    Line before;
    for (const Placed& one : line) {
        if (one.address == end.address) break;
        before.push_back(one);
    }
    return before;
}

// add Xd, Xn, #imm: the second half of an address
bool adds_number(uint32_t word) {
    return is_word(word, 0xffc00000, 0x91000000);
}
uint64_t number_of(uint32_t word) {
    return word >> 10 & 0xfff;
}

// What a line puts into a register by adr, or by adrp and add.
std::optional<uint64_t> address_in(const Line& line, uint32_t name) {
    const Placed* one = last_write(line, name);
    return one != nullptr ? taken_address(up_to(line, *one), *one) : std::nullopt;
}

bool sets_flags(uint32_t word) {
    return is_word(word, 0x3f000000, 0x31000000) || is_word(word, 0x3f000000, 0x2b000000) ||
           is_word(word, 0x7f000000, 0x72000000) || is_word(word, 0x7f000000, 0x6a000000) ||
           is_word(word, 0x3fe00000, 0x3a400000) || is_word(word, 0x5f200000, 0x1e200000) ||
           is_call(word);
}

bool is_written(Line::const_iterator from, Line::const_iterator to, uint32_t name) {
    return std::any_of(from, to, [name](const Placed& one) { return may_write(one.word, name); });
}

// Whether a register has at the end of a line what `other` had at a place of it, the same one or
// copied.
bool is_same(const Line& line, Line::const_iterator place, uint32_t name, uint32_t other) {
    if (name == other) return !is_written(place, line.end(), name);
    const Placed* copy = last_write(line, name);
    if (copy == nullptr || !is_word(copy->word, 0x7fe0ffe0, 0x2a0003e0) || // mov Rd, Rm
        other_of(copy->word) != other)
        return false;
    const auto copied = line.begin() + (copy - line.data());
    return !is_written(std::min(copied, place), std::max(copied, place), other);
}

// How many entries the table has whose number is in this register: cmp Rn,#N; b.hi before.
std::optional<uint64_t> bound_of(const Line& line, uint32_t name) {
    bool above = false;
    for (auto one = line.end(); one-- != line.begin();) {
        if (is_word(one->word, 0xff00001f, 0x54000008)) above = true;
        if (!sets_flags(one->word)) continue;
        if (above && is_word(one->word, 0x7fc0001f, 0x7100001f) &&
            is_same(line, one, name, base_of(one->word)))
            return number_of(one->word) + 1;
        above = false;
    }
    return std::nullopt;
}

// add Xd, Xn, Wm, extension #shift or add Xd, Xn, Xm, lsl #shift
bool is_sum(uint32_t word) {
    return is_word(word, 0xffe00000, 0x8b200000) || is_word(word, 0xffe00000, 0x8b000000);
}

} // namespace

bool is_call(uint32_t word) {
    return is_word(word, 0xfc000000, 0x94000000) || is_word(word, 0xfefff000, 0xd63f0000);
}

bool is_pointer(uint32_t word) {
    return is_word(word, 0xffc00000, 0xf9400000) || is_word(word, 0xffe00000, 0xf8400000) ||
           is_word(word, 0xffe00c00, 0xf8600800) || is_word(word, 0xfe400000, 0xa8400000) ||
           is_word(word, 0xffe0ffe0, 0xaa0003e0);
}

const Placed* last_write(const Line& line, uint32_t name) {
    const auto one = std::find_if(line.rbegin(), line.rend(), [name](const Placed& placed) {
        return may_write(placed.word, name);
    });
    return one == line.rend() ? nullptr : &*one;
}

std::optional<uint64_t> taken_address(const Line& line, const Placed& last) {
    if (takes_address(last.word)) return address_of(last);
    if (!adds_number(last.word)) return std::nullopt;
    const auto page = address_in(line, base_of(last.word));
    return page ? std::optional(*page + number_of(last.word)) : std::nullopt;
}

// adrp x1, table; add x1, x1, ...; ldrb w0, [x1, w0, uxtw]; adr x1, base; add x0, x1, w0, sxtb #2
std::optional<Table> table_of(const Line& line, const Placed& sum) {
    if (!is_sum(sum.word)) return std::nullopt;
    const Line before = up_to(line, sum);
    const auto base = address_in(before, base_of(sum.word));
    const Placed* load = last_write(before, other_of(sum.word));
    // ldr, ldrb, ldrh, ldrsb, ldrsh, ldrsw Rt, [Xn, Rm...]
    if (!base || load == nullptr || !is_word(load->word, 0x3f200c00, 0x38200800))
        return std::nullopt;
    const Line earlier = up_to(line, *load);
    const auto address = address_in(earlier, base_of(load->word));
    const auto entries = bound_of(earlier, other_of(load->word));
    Table table;
    table.entry_bytes = 1u << (load->word >> 30);
    if (!address || !entries || *entries > kMaxTable || table.entry_bytes > 4) return std::nullopt;
    const bool is_extended = is_word(sum.word, 0x00200000, 0x00200000);
    table.address = *address;
    table.entries = *entries;
    table.is_signed = is_word(load->word, 0x00800000, 0x00800000) ||
                      (is_extended && is_word(sum.word, 0x00008000, 0x00008000));
    table.base = *base;
    table.shift = is_extended ? sum.word >> 10 & 7 : sum.word >> 10 & 0x3f;
    return table;
}

} // namespace speedbump::elf
