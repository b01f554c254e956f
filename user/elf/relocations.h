// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "elf/dynamic.h"
#include "elf/image.h"
#include "elf/symbols.h"
#include "util/result.h"

namespace speedbump::elf {

// Every entry of the RELA and RELR tables that sections or else PT_DYNAMIC name.
Result<std::vector<Relocation>> read_relocations(const Image& image, const Dynamic& dynamic);

} // namespace speedbump::elf
