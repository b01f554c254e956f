// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "elf/symbols.h"

namespace speedbump::elf {

struct FileRange {
    uint64_t address = 0; // before relocation
    uint64_t offset = 0;  // in the file
    uint64_t size = 0;
};

// The first section of that name.
std::optional<FileRange> find_section(const ElfFile& file, std::string_view name);

// The bytes at an address, as many as the file has of them up to `size`.
std::optional<std::vector<unsigned char>> read_address(const ElfFile& file, uint64_t address,
                                                       uint64_t size);

// A piece of code that the unwinder knows: a function, or the part that was split off one.
struct FramePart {
    uint64_t begin = 0; // addresses, before relocation
    uint64_t end = 0;
    uint64_t handlers = 0;      // address of its language-specific data (LSDA), 0: none
    bool handlers_known = true; // false: it may have some, which could not be read
};

// What .eh_frame and .gcc_except_table tell of a file's code. A file without them has no parts.
class FrameTable {
  public:
    explicit FrameTable(const ElfFile& file);

    // Whether all parts are known: false where something could not be read, so that code which no
    // part holds may be one's all the same.
    bool is_whole() const { return is_whole_; }
    // The part that holds the address, or nullptr.
    const FramePart* find(uint64_t address) const;
    // Where exceptions that pass through the part may continue in it; nullopt when its tables
    // can't be read.
    std::optional<std::vector<uint64_t>> landing_pads(const FramePart& part) const;

  private:
    // False: not all of it could be read.
    bool read(const std::vector<unsigned char>& bytes, uint64_t address);

    const ElfFile& file_;
    std::vector<FramePart> parts_; // by address
    bool is_whole_ = false;
};

} // namespace speedbump::elf
