// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "abi.h"

// Where the registers lie in what the kernel keeps of a thread (SB_REGISTERS words), and how DWARF
// numbers them: native_registers_x86_64.cpp, native_registers_aarch64.cpp.
namespace speedbump::stacks {

// The word of each register that DWARF counts, from 0 on.
std::span<const size_t> dwarf_registers();

extern const unsigned kDwarfStackPointer; // the number that DWARF gives it
extern const size_t kInstructionPointer;  // words
extern const size_t kStackPointer;
extern const std::optional<size_t> kLinkRegister; // where a call leaves what it returns to

// The bits of a return address on the stack that may be its signature; 0: none is signed.
extern const uint64_t kSignature;

} // namespace speedbump::stacks
