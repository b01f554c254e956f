// SPDX-License-Identifier: MIT
#include "elf/machine.h"

#include <elf.h>

#include <cstring>

namespace speedbump::elf {

const uint16_t kMachine = EM_AARCH64;
const uint32_t kRelativeType = R_AARCH64_RELATIVE;
const uint32_t kIrelative = R_AARCH64_IRELATIVE;
const uint32_t kJumpSlot = R_AARCH64_JUMP_SLOT;
const uint32_t kGlobalData = R_AARCH64_GLOB_DAT;
const uint32_t kAbsolute = R_AARCH64_ABS64;

// An unbound slot holds the table's first entry, which saves x16 and lr and looks for the dynamic
// linker through x16 or x17: [bti c]; stp x16,x30,[sp,#-16]!; adrp x16. An entry of one function
// begins with the adrp.
bool is_linkage_stub(std::basic_string_view<unsigned char> code) {
    constexpr uint32_t kBtiC = 0xd503245f, kPush = 0xa9bf7bf0, kAdrpX16 = 0x90000010;
    const auto next = [&code] {
        uint32_t word = 0;
        if (code.size() < sizeof word) return word;
        std::memcpy(&word, code.data(), sizeof word);
        code.remove_prefix(sizeof word);
        return word;
    };
    uint32_t word = next();
    if (word == kBtiC) word = next();
    if (word == kPush) word = next();
    return (word & 0x9f00001f) == kAdrpX16;
}

} // namespace speedbump::elf
