// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "elf/probe_site.h"
#include "elf/symbols.h"
#include "util/result.h"

namespace speedbump::elf {

// Where the probe of one function goes.
struct ProbeSite {
    uint64_t file_offset = 0;
    SiteKind kind = SiteKind::kSingleStep;
    std::string instruction; // as disassembled: "push %rbp"
    std::string reason;      // one sentence for `check -v`: why here and not elsewhere
    // Of a jump: how far above the stack pointer the return address lies there; nullopt: it is not
    // known.
    std::optional<uint32_t> return_distance{};
};

struct PlacementOptions : SiteOptions {
    bool entry_only = false; // never move the probe off the first instruction
    bool jump = false;       // a jump takes the place of instructions: elf/jump_site.h
};

// Chooses for each function (file offsets of entries in `file`) the cheapest instruction of its
// entry block that may be probed (judge_site) and certainly runs exactly once per call: reached by
// straight-line code from the entry, and no direct branch of the whole file, and no jump-table
// entry of the function, lands past the entry up to and on it. Where that is not certain the
// entry itself. kUnsupported, with the reason as message, where no probe is known to be harmless.
std::vector<Result<ProbeSite>> place_probes(const ElfFile& file, std::span<const uint64_t> entries,
                                            const PlacementOptions& options);

// The same for one function.
Result<ProbeSite> place_probe(const ElfFile& file, uint64_t entry, const PlacementOptions& options);

} // namespace speedbump::elf
