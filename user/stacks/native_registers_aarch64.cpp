// SPDX-License-Identifier: MIT
#include "stacks/native_registers.h"

#include <array>

namespace speedbump::stacks {
namespace {

// Where in struct user_pt_regs the registers lie that DWARF counts: x0 to x30, and sp, in that
// order (DWARF for the Arm 64-bit Architecture, 4.1).
constexpr std::array<size_t, 32> kDwarfRegisters = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                                    11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                                                    22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

} // namespace

std::span<const size_t> dwarf_registers() {
    return kDwarfRegisters;
}

const unsigned kDwarfStackPointer = 31;
const size_t kInstructionPointer = 32;
const size_t kStackPointer = 31;
const std::optional<size_t> kLinkRegister = 30;

// Those above the addresses that programs get unasked, also of kernels with 52 bits
// (Documentation/arch/arm64/memory.rst, pointer-authentication.rst).
const uint64_t kSignature = ~((uint64_t{1} << 48) - 1);

} // namespace speedbump::stacks
