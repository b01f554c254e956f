// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string_view>

// What differs between processors in ELF files: machine_x86_64.cpp, machine_aarch64.cpp.
namespace speedbump::elf {

extern const uint16_t kMachine; // e_machine of the files that run here

// Types of relocations.
extern const uint32_t kRelativeType; // the address at which the file is loaded, and a distance
extern const uint32_t kIrelative;    // what an indirect function answers
extern const uint32_t kJumpSlot;     // the address of a function, for calls
extern const uint32_t kGlobalData;   // the address of a symbol
extern const uint32_t kAbsolute;     // the same, in data

// Whether this is a stub of a procedure linkage table: what a slot holds as long as nothing was
// called through it.
bool is_linkage_stub(std::basic_string_view<unsigned char> code);

} // namespace speedbump::elf
