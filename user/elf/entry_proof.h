// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string_view>

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

// Shows that an instruction begins at this file offset, and finds out what of. kUnsupported, with
// the reason, where nothing proves it.
Result<ProvenEntry> prove_entry(const ElfFile& file, uint64_t offset);

// Whether an instruction begins so many bytes into code that begins with one. By machine:
// placement_MACHINE.cpp.
bool begins_instruction(std::basic_string_view<unsigned char> code, uint64_t distance);

} // namespace speedbump::elf
