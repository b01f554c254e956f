// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "elf/probe_site.h"
#include "util/result.h"

namespace speedbump::elf {

// A USDT mark: an instruction, mostly a nop, that a note in .note.stapsdt gives a name.
struct Mark {
    std::string provider, name;
    uint64_t address = 0;                  // before relocation
    uint64_t file_offset = 0;              // of the instruction
    std::basic_string<unsigned char> code; // what stands there, and some bytes after it; none: it
                                           // lies in no code of the file
    // Of the 16 bits that the program looks at, which are above 0 while the mark is probed.
    uint64_t semaphore_address = 0; // 0: it has none
    uint64_t semaphore_offset = 0;  // in the file; 0: it lies in no data that can be counted up
};

// All marks of an ELF file; none where it has no such section. `fd` stays the caller's; `path` is
// for messages. kInvalid for what is no ELF file of this machine, or is damaged.
Result<std::vector<Mark>> read_marks(int fd, const std::string& path);

// Whether a probe on the mark changes time and nothing else.
SiteVerdict judge_mark(const Mark& mark, const SiteOptions& options);

} // namespace speedbump::elf
