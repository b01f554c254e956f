// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "process/remote_elf.h"

namespace speedbump::inject {

// All mappings of a process at one moment, the anonymous ones too.
class AddressSpace {
  public:
    struct Range {
        uint64_t start = 0;
        uint64_t end = 0;
        bool writable = false;
        bool main_stack = false;
    };

    AddressSpace() = default;
    explicit AddressSpace(pid_t pid);
    // `stack_limit`: the process's RLIMIT_STACK.
    AddressSpace(std::vector<Range> ranges, uint64_t stack_limit)
        : ranges_(std::move(ranges)), stack_limit_(stack_limit) {}

    // An address in the middle of the largest hole, where neither the heap nor a mapping grows to;
    // 0 when there is none for `size` bytes.
    uint64_t choose_hole(uint64_t size) const;
    uint64_t stack_end(uint64_t stack_pointer) const;
    // The lowest address that a thread may use of the stack on which it stands: of the main
    // thread's, what the kernel would let it grow to; of another's, where glibc says that it begins
    // (`thread_block` is the thread's %fs). Nothing when the stack is not the thread's own, as a
    // coroutine's, whose end nobody knows.
    std::optional<uint64_t> stack_floor(const process::RemoteMemory& memory, uint64_t stack_pointer,
                                        uint64_t thread_block) const;

  private:
    std::vector<Range>::const_iterator find(uint64_t address) const;

    std::vector<Range> ranges_;
    uint64_t stack_limit_ = 0;
};

} // namespace speedbump::inject
