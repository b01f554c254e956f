// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <vector>

#include "stacks/native_stack.h"
#include "stacks/stack_reader.h"

namespace speedbump::stacks {

// A frame of a whole stack: one of both.
struct WholeFrame {
    const Function* python = nullptr;
    const NativeFunction* native = nullptr;
};

// Puts the Python frames of a thread between its native ones, where the interpreter's loop was
// called for them; innermost first. Both must be of the same moment. Nothing when they don't fit
// together.
//
// A call of the loop runs a frame that C code called and those that this one called in turn
// (CPython 3.10: one frame). From 3.12 on the loop keeps something in its part of the C stack, so
// that no symbol is needed. Before, a call is known by the function's name, and there must be as
// many as such frames, or one more: the innermost, when it is just beginning or ending.
std::optional<std::vector<WholeFrame>> merge(const NativeStack& native,
                                             const std::vector<Frame>& python);

} // namespace speedbump::stacks
