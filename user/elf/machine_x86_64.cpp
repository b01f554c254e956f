// SPDX-License-Identifier: MIT
#include "elf/machine.h"

#include <elf.h>

#include <cstring>

namespace speedbump::elf {

const uint16_t kMachine = EM_X86_64;
const uint32_t kRelativeType = R_X86_64_RELATIVE;
const uint32_t kIrelative = R_X86_64_IRELATIVE;
const uint32_t kJumpSlot = R_X86_64_JUMP_SLOT;
const uint32_t kGlobalData = R_X86_64_GLOB_DAT;
const uint32_t kAbsolute = R_X86_64_64;

bool is_linkage_stub(std::basic_string_view<unsigned char> code) {
    static constexpr unsigned char kEndbr[] = {0xf3, 0x0f, 0x1e, 0xfa};
    if (code.size() >= 4 && std::memcmp(code.data(), kEndbr, 4) == 0) code.remove_prefix(4);
    if (code.size() >= 6 && code[0] == 0x68 && (code[5] == 0xe9 || code[5] == 0xf2)) return true;
    if (!code.empty() && code[0] == 0xf2) code.remove_prefix(1);
    return code.size() >= 2 && code[0] == 0xff && code[1] == 0x25;
}

} // namespace speedbump::elf
