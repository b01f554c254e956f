// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "stacks/code.h"

namespace speedbump::stacks {

struct Frame {
    const Function* function = nullptr; // lives as long as the reader
    int line = 0;                       // 0: not known
    // Of stacks for merging with the native one (whole_stack.h): whether C code called the
    // interpreter for this frame, and where in the C stack that call keeps something (3.12+).
    bool is_entry = false;
    uint64_t c_stack = 0;
};

enum class StackFault {
    kFine,
    kChanging,   // each time it was read it changed meanwhile
    kUnreadable, // points to memory that is not there
    kCircle,     // its frames go on for ever
    kNoCode,     // a frame runs what is no code object
};

struct ThreadStack {
    pid_t tid = 0;
    int64_t interpreter = 0; // its id; 0: the main one
    StackFault fault = StackFault::kFine;
    bool holds_gil = false;
    bool asleep = false;       // blocked in the kernel for certain; else running or able to run
    std::vector<Frame> frames; // innermost first; of use only without a fault
};

// Why a stack could not be read, for people.
const char* describe(StackFault fault);

} // namespace speedbump::stacks
