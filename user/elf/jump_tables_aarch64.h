// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

// Jumps through registers in code of aarch64: which of them go by a table, and where that lies.
namespace speedbump::elf {

// An instruction and where it lies.
struct Placed {
    uint64_t address = 0;
    uint32_t word = 0;
};

// The instructions before one, back to where a jump may lead to.
using Line = std::vector<Placed>;

// What was written to a general register last, of that line; nullptr: nothing there.
const Placed* last_write(const Line& line, uint32_t name);

// bl, and calls through a register, with and without authentication
bool is_call(uint32_t word);

// The address that the last instruction of a line puts into a register, by adr, or by adrp and add.
std::optional<uint64_t> taken_address(const Line& line, const Placed& last);

// Whether it puts a pointer into a register: what is loaded whole, or comes from another register.
bool is_pointer(uint32_t word);

// Distances that a jump's register is made of: base + distance << shift.
struct Table {
    uint64_t address = 0;
    uint64_t entries = 0;
    unsigned entry_bytes = 0;
    bool is_signed = false;
    uint64_t base = 0;
    unsigned shift = 0;
};

// The table of which the sum at the end of a line takes a distance, as compilers write it; nullopt:
// it is no such sum, or how many entries there are is not known.
std::optional<Table> table_of(const Line& line, const Placed& sum);

} // namespace speedbump::elf
