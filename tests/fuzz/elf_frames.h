// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "mutator.h"

// Unwind tables: .gcc_except_table, .eh_frame and .eh_frame_hdr.
namespace speedbump::fuzz {

inline void append(std::string& bytes, uint64_t value, size_t size) {
    bytes.append(reinterpret_cast<const char*>(&value), size);
}

// What happens to exceptions, with so many call sites; each may be any function's.
inline std::string exception_table(Random& random, size_t sites, uint64_t reach) {
    std::string bytes("\xff\xff\x03", 3); // no base, no types, distances of four bytes
    uint64_t length = sites * 13;
    for (; length >= 0x80; length >>= 7) bytes += static_cast<char>(length | 0x80);
    bytes += static_cast<char>(length);
    for (size_t i = 0; i < sites; ++i) {
        append(bytes, 0, 8);
        append(bytes, 1 + random.next() % reach, 4); // where they continue
        append(bytes, 0, 1);
    }
    return bytes;
}

struct FrameShape {
    uint64_t text, text_size, handlers;
    size_t count, step;
    size_t style; // 1: some have no CIE, 2: each is of all of the code, 3: there are ends only
};

struct UnwindTables {
    std::string frames;
    std::vector<std::pair<uint64_t, uint64_t>> index; // where code begins, and its FDE
};

// To lie at the address `begin`.
inline UnwindTables unwind_tables(Random& random, const FrameShape& shape, uint64_t begin) {
    UnwindTables tables;
    std::string& bytes = tables.frames;
    if (shape.style == 3) {
        bytes.append(shape.count * 4, '\0');
        return tables;
    }
    append(bytes, 20, 4); // what all of them have in common: z, L and R as four bytes each
    bytes += std::string("\0\0\0\0\x01zLR\0\x01\x78\x10\x02\x1b\x1b\0\0\0\0", 20);
    for (size_t i = 0; i < shape.count; ++i) {
        const uint64_t fde = begin + bytes.size();
        const uint64_t code = shape.text + i * shape.step % (shape.text_size + 1);
        tables.index.emplace_back(code, fde);
        append(bytes, 20, 4);
        const bool is_lost = shape.style == 1 && random.below(64) == 0;
        append(bytes, is_lost ? random.next() : bytes.size(), 4);
        append(bytes, code - (fde + 8), 4);
        append(bytes, shape.style == 2 ? shape.text_size : shape.step, 4);
        append(bytes, 4, 1);
        append(bytes, shape.handlers - (fde + 17), 4);
        append(bytes, 0, 3);
    }
    return tables;
}

// Their .eh_frame_hdr, to lie at the address `header`.
inline std::string index_of(Random& random, const UnwindTables& tables, uint64_t begin,
                            uint64_t header) {
    std::string bytes("\x01\x1b\x03\x3b", 4);
    append(bytes, begin - (header + 4), 4);
    append(bytes, random.below(4) == 0 ? random.next() : tables.index.size(), 4);
    for (const auto& [code, fde] : tables.index) {
        append(bytes, code - header, 4);
        append(bytes, fde - header, 4);
    }
    return bytes;
}

} // namespace speedbump::fuzz
