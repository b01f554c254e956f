// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include "abi.h"
#include "util/result.h"

// Where the registers lie in what the kernel keeps of a thread (SB_REGISTERS words), and how DWARF
// numbers them: native_registers_x86_64.cpp, native_registers_aarch64.cpp.
namespace speedbump::stacks {

// The word of each register that DWARF counts, from 0 on.
std::span<const size_t> dwarf_registers();

extern const unsigned kDwarfStackPointer; // the number that DWARF gives it
extern const size_t kInstructionPointer;  // words
extern const size_t kStackPointer;

// kUnsupported where native stacks are not read yet.
Result<void> can_unwind();

} // namespace speedbump::stacks
