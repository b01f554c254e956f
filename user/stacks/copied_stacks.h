// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "abi.h"
#include "stacks/call_paths.h"
#include "stacks/code.h"
#include "stacks/layout.h"
#include "stacks/stack.h"

namespace speedbump::stacks {

// What frames mean that were copied at one moment: by a BPF program, or of a thread that certainly
// did not run meanwhile. Within the interpreter's loop a thread may just have been linking a frame,
// so that a stack counts only once it was seen at two places of the loop, or outside of it.
class CopiedStacks {
  public:
    // All of them must outlive it.
    CopiedStacks(const Layout& layout, CodeTable& codes, CallPaths& paths)
        : layout_(layout), codes_(codes), paths_(paths) {}

    // The frames lie innermost first. The fault is kNoCode when a code object is gone since then.
    // `loop_pc`: the instruction at which the thread was, when it was in the interpreter's loop,
    // else 0.
    ThreadStack interpret(pid_t tid, std::span<const sb_python_frame> frames, uint64_t loop_pc);
    bool is_certain(const std::vector<Frame>& frames) { return paths_.is_proven(path_of(frames)); }
    // The paths are to begin anew.
    void forget() { loop_pcs_.clear(); }

  private:
    StackFault read(std::span<const sb_python_frame> frames, std::vector<Frame>& result);
    uint32_t path_of(const std::vector<Frame>& frames);

    const Layout& layout_;
    CodeTable& codes_;
    CallPaths& paths_;
    std::unordered_map<uint32_t, uint64_t> loop_pcs_; // where a path was first seen in the loop
};

} // namespace speedbump::stacks
