// SPDX-License-Identifier: MIT
#include "elf/dynamic.h"

#include <algorithm>

namespace speedbump::elf {

Dynamic read_dynamic(std::span<const Elf64_Dyn> entries) {
    Dynamic dynamic;
    for (const Elf64_Dyn& entry : entries) {
        uint64_t value = entry.d_un.d_val;
        switch (entry.d_tag) {
            case DT_NULL:
                return dynamic;
            case DT_SYMTAB:
                dynamic.symbols = value;
                break;
            case DT_STRTAB:
                dynamic.strings = value;
                break;
            case DT_STRSZ:
                dynamic.strings_size = value;
                break;
            case DT_VERSYM:
                dynamic.versions = value;
                break;
            case DT_HASH:
                dynamic.hash = value;
                break;
            case DT_GNU_HASH:
                dynamic.gnu_hash = value;
                break;
            case DT_RELA:
                dynamic.rela = value;
                break;
            case DT_RELASZ:
                dynamic.rela_size = value;
                break;
            case DT_JMPREL:
                dynamic.jump = value;
                break;
            case DT_PLTRELSZ:
                dynamic.jump_size = value;
                break;
            case DT_RELR:
                dynamic.relr = value;
                break;
            case DT_RELRSZ:
                dynamic.relr_size = value;
                break;
            case DT_SONAME:
                dynamic.soname = value;
                break;
            default:
                break;
        }
    }
    return dynamic;
}

Dynamic read_dynamic(const Image& image) {
    return read_dynamic(image.dynamic());
}

std::string read_soname(const Image& image, const Dynamic& dynamic) {
    if (!dynamic.soname || *dynamic.soname >= dynamic.strings_size) return {};
    auto bytes = image.read_address(
        dynamic.strings + *dynamic.soname,
        std::min<uint64_t>(dynamic.strings_size - *dynamic.soname, 4096), 4096, "DT_SONAME");
    if (!bytes) return {};
    auto end = std::find(bytes->begin(), bytes->end(), 0);
    return end == bytes->end() ? std::string() : std::string(bytes->begin(), end);
}

} // namespace speedbump::elf
