// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "stacks/walk.h"

namespace speedbump::stacks {

struct WalkedFrames {
    std::vector<sb_python_frame> frames; // innermost first
    uint32_t fault = SB_PYTHON_FINE; // SB_PYTHON_UNREADABLE, SB_PYTHON_DEEP: more than kMaxFrames
};

// bpf/python_walk.h in C++ and from outside: the frames of the thread with this PyThreadState,
// which must not run meanwhile.
inline WalkedFrames walk_frames(const Source& source, const sb_python_layout& layout,
                                uint64_t state) {
    WalkedFrames walked;
    WalkReader reader(source);
    sb_walk walk{};
    walked.fault = SB_PYTHON_UNREADABLE;
    if (sb_innermost(reader, &layout, state, &walk.next) != 0) return walked;
    while (walk.next != 0) {
        sb_python_frame frame{};
        if (sb_walk_step(reader, &layout, &walk, &frame) != 0) return walked;
        walked.frames.push_back(frame);
        if (walked.frames.size() > kMaxFrames) {
            walked.fault = SB_PYTHON_DEEP;
            return walked;
        }
    }
    walked.fault = SB_PYTHON_FINE;
    return walked;
}

} // namespace speedbump::stacks
