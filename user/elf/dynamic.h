// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "elf/image.h"

namespace speedbump::elf {

// What PT_DYNAMIC says: addresses before relocation, 0 where it says nothing.
struct Dynamic {
    uint64_t symbols = 0, strings = 0, strings_size = 0, versions = 0, hash = 0, gnu_hash = 0;
    uint64_t rela = 0, rela_size = 0, jump = 0, jump_size = 0, relr = 0, relr_size = 0;
    std::optional<uint64_t> soname;
};

Dynamic read_dynamic(std::span<const Elf64_Dyn> entries);
Dynamic read_dynamic(const Image& image);
// DT_SONAME; empty when there is none, or none that can be read.
std::string read_soname(const Image& image, const Dynamic& dynamic);

} // namespace speedbump::elf
