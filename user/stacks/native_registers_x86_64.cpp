// SPDX-License-Identifier: MIT
#include "stacks/native_registers.h"

#include <array>

namespace speedbump::stacks {
namespace {

// Where in struct pt_regs (x86-64) the registers lie that DWARF counts: rax, rdx, rcx, rbx, rsi,
// rdi, rbp, rsp, r8 to r15, rip (which the unwind tables of a PLT need). System V ABI, AMD64
// supplement, figure 3.36.
constexpr std::array<size_t, 17> kDwarfRegisters = {10, 12, 11, 5, 13, 14, 4, 19, 9,
                                                    8,  7,  6,  3, 2,  1,  0, 16};

} // namespace

std::span<const size_t> dwarf_registers() {
    return kDwarfRegisters;
}

const unsigned kDwarfStackPointer = 7;
const size_t kInstructionPointer = 16;
const size_t kStackPointer = 19;
const std::optional<size_t> kLinkRegister; // calls push it
const uint64_t kSignature = 0;

} // namespace speedbump::stacks
