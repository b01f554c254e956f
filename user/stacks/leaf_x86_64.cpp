// SPDX-License-Identifier: MIT
#include "stacks/leaf.h"

namespace speedbump::stacks {

bool is_in_leaf(uint64_t, const ReadCode&) {
    return false;
}

} // namespace speedbump::stacks
