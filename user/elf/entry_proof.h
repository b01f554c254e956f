// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "elf/probe_site.h"
#include "elf/symbols.h"
#include "util/result.h"

namespace speedbump::elf {

// A function's entry that is known to be one.
struct ProvenEntry {
    uint64_t file_offset = 0;
    uint64_t address = 0;
    uint64_t end = 0; // of the function; 0: not known
    SitePosition position = SitePosition::kInside;
};

// Shows of places in one file that an instruction begins there. One for all of them: what has been
// decoded of a function that others lie in serves for all of these. Not thread-safe.
class EntryProver {
  public:
    // The file must outlive this.
    explicit EntryProver(const ElfFile& file) : file_(file) {}

    // What begins at this file offset. kUnsupported, with the reason, where nothing proves it.
    Result<ProvenEntry> prove(uint64_t offset);

  private:
    Result<void> walk_to(const Function& outer, uint64_t address);

    const ElfFile& file_;
    // Of functions that others lie in: where their instructions begin, as far as decoded.
    std::map<const Function*, std::vector<uint32_t>> starts_;
    size_t decoded_ = 0; // instructions, of all of them
};

// Goes on decoding `code` from the last of `starts`, which are distances from its beginning, and
// adds where instructions begin, until one does at `distance` or behind it, or there is no more.
// By machine: placement_MACHINE.cpp.
void add_starts(std::basic_string_view<unsigned char> code, uint64_t distance,
                std::vector<uint32_t>& starts);

} // namespace speedbump::elf
