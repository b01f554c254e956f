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
    std::basic_string<unsigned char> code; // what stands there, and some bytes behind it
};

// All marks of an ELF file; none where it has no such section. `fd` stays the caller's; `path` is
// for messages. kInvalid for what is no ELF file of this machine, or is damaged.
Result<std::vector<Mark>> read_marks(int fd, const std::string& path);

// Whether a probe on the mark changes time and nothing else. `moves_to_nop5`: that the probe goes
// behind a nop of one byte where a 5-byte nop follows, as libbpf places it from 1.7 on.
SiteVerdict judge_mark(const Mark& mark, const SiteOptions& options, bool moves_to_nop5);

} // namespace speedbump::elf
