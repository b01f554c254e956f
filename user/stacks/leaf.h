// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

// Code without unwind tables: leaf_x86_64.cpp, leaf_aarch64.cpp.
namespace speedbump::stacks {

// The instruction at an address, where all are of four bytes; nothing: it can't be read.
using ReadCode = std::function<std::optional<uint32_t>(uint64_t address)>;

// Whether a thread at `pc` returns to where its link register says, with the stack pointer that it
// has. False where that is not certain, and where there is no such register.
bool is_in_leaf(uint64_t pc, const ReadCode& code);

} // namespace speedbump::stacks
