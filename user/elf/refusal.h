// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>

#include "util/result.h"

namespace speedbump::elf {

// A site or a function that is left as it is, and why.
inline Error refusal(std::string reason) {
    return make_error(ErrorKind::kUnsupported, std::move(reason));
}

} // namespace speedbump::elf
