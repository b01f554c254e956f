// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <span>

#include "stacks/address_space.h"
#include "stacks/native_files.h"
#include "util/result.h"

namespace speedbump::stacks {

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

    // How often the process was seen to map other code than before.
    uint64_t changes() const;

    // `stack`: bytes from the stack pointer on.
    NativeStack unwind(Registers registers, std::span<const char> stack);
    static uint64_t stack_pointer(Registers registers);

  private:
    class Impl;
    explicit NativeUnwinder(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

} // namespace speedbump::stacks
