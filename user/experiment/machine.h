// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>

// What progress points know of the processor: machine_x86_64.cpp, machine_aarch64.cpp.
namespace speedbump::experiment {

// What the kernel's functions of system calls begin with.
extern const char* const kSystemCallPrefix;

// The word of the kernel's register structure that holds a register of this number in machine
// code; SB_NO_REGISTER where there is none.
uint8_t word_of(uint8_t number);
extern const uint8_t kIpWord;

// The registers, by their numbers in machine code, that hold a call's first arguments.
std::span<const uint8_t> argument_registers();

} // namespace speedbump::experiment
