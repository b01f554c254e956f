// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "abi.h"
#include "stacks/native_files.h"
#include "util/result.h"

namespace speedbump::stacks {

// As in the kernel's struct pt_regs.
using Registers = std::span<const __u64>;

struct NativeStack {
    struct Frame {
        const NativeFunction* function = nullptr; // lives as long as the unwinder
        uint64_t low = 0; // its part of the stack: from here up to where its caller's begins
    };
    std::vector<Frame> frames; // innermost first
    bool is_complete = false;  // up to the thread's start
    // Where the thread is, when that is in the interpreter's loop, or may be (no symbol there).
    uint64_t loop_pc = 0;
};

// Finds the callers of a thread from its registers and a copy of its stack, by the unwind tables
// (.eh_frame) of the files that the process maps, with elfutils' libdwfl. The process itself is
// not touched but for reading what it maps. For one thread at a time.
class NativeUnwinder {
  public:
    // `files`: shared by those of all processes. kNotFound when the process is gone, kPermission.
    static Result<NativeUnwinder> open(
        pid_t pid, std::shared_ptr<NativeFiles> files = std::make_shared<NativeFiles>());
    NativeUnwinder(NativeUnwinder&&) noexcept;
    NativeUnwinder& operator=(NativeUnwinder&&) noexcept;
    ~NativeUnwinder();

    // `stack`: bytes from the stack pointer on.
    NativeStack unwind(Registers registers, std::span<const char> stack);
    static uint64_t stack_pointer(Registers registers);

  private:
    class Impl;
    explicit NativeUnwinder(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

} // namespace speedbump::stacks
