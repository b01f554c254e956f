// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "elf/image.h"
#include "elf/symbols.h"

namespace speedbump::elf {

// The unpacked .gnu_debugdata section (xz); nullopt when there is none, kInvalid when it is
// damaged or unpacks to more than 256 MiB.
Result<std::optional<Image>> open_debugdata(const Image& image, const std::string& name);

// The separate debug file of `image` (whose path is `path` below search.root): by build id, which
// must be the same in both, else by debug link, whose CRC must agree. What was found and refused
// is told in `warnings`.
std::optional<Image> find_debug_file(const Image& image, const std::string& path,
                                     const DebugSearch& search, std::vector<std::string>& warnings);

} // namespace speedbump::elf
