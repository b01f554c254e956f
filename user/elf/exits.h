// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "elf/probe_site.h"
#include "elf/symbols.h"
#include "util/result.h"

namespace speedbump::elf {

// Where a jump through a register or memory leads: displacement + base + index * scale, or the
// eight bytes there. Registers have their numbers in machine code.
struct JumpOperand {
    static constexpr uint8_t kNone = 255;
    uint8_t base = kNone;
    uint8_t index = kNone;
    uint8_t scale = 0;
    bool in_memory = false;
    bool from_next = false; // the displacement counts from after the jump
    int64_t displacement = 0;
};

// An instruction by which a function can be left: a return, or a jump to another function.
struct Exit {
    static constexpr uint8_t kAlways = 16;
    uint64_t file_offset = 0;
    uint8_t length = 0;
    uint8_t condition = kAlways;        // of a jump: the low four bits of its code; left if taken
    std::optional<JumpOperand> operand; // left if it leads out of all parts
    bool is_return = false;             // else a jump,
    std::optional<uint64_t> target;     // to this address where that is known
    std::string instruction;            // as disassembled
};

// A range of code, by address.
struct CodePart {
    uint64_t begin = 0;
    uint64_t end = 0;
};

inline constexpr size_t kMaxCodeParts = 8; // of one function

// All ways out of one function but those that unwind it (exceptions, longjmp).
struct WaysOut {
    uint64_t entry_address = 0;
    std::vector<Exit> exits;     // by place
    std::vector<CodePart> parts; // of the function, by address; at most kMaxCodeParts
    // A function of Go: its stack may move while it runs.
    bool is_go = false;
};

// Follows the code of functions to every instruction by which they can be left. At each of them the
// stack pointer is what it was at the entry exactly when that call ends there; a jump that stays in
// the function has it lower, or leads into one of the parts.
//
// Followed are: what lies after each instruction, direct jumps, tables of jumps, addresses of own
// code that are taken, and landing pads of exceptions. A jump to the start of another function, or
// through memory or a register to no known part, is a tail call. Code without a symbol that is
// jumped to belongs to the function. On aarch64, where probes are put on entries alone, of jumps
// through tables those are followed that compilers write, and functions of Go are refused.
class ExitFinder {
  public:
    ExitFinder(std::shared_ptr<const ElfFile> file, const SiteOptions& options);
    ~ExitFinder();

    // Of the function whose first instruction lies at this file offset. kUnsupported, with the
    // reason, where not every way out is known.
    Result<WaysOut> find(uint64_t entry_offset) const;
    // How much lower the stack pointer is at `place` than at the entry, `place` being reached from
    // it by straight-line code; nullopt when that is not known. File offsets.
    std::optional<uint64_t> stack_used(uint64_t entry_offset, uint64_t place) const;

    // Whether these registers (by their numbers in machine code) have at `place`, being reached
    // from the entry by straight-line code, what they had there. False also when that is not known.
    bool keeps(uint64_t entry_offset, uint64_t place, const std::vector<uint8_t>& registers) const;

    struct Impl;

  private:
    std::unique_ptr<Impl> impl_;
};

} // namespace speedbump::elf
