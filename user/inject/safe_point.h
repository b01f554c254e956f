// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>
#include <sys/user.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "inject/stopped.h"
#include "process/memory.h"
#include "process/remote_elf.h"

namespace speedbump::inject {

// Where a stopped thread stands, as far as borrowing it goes.
enum class Stand {
    kUserCode,    // in the interpreter, or in a library that is no part of libc or an allocator
    kBlockedCall, // in a system call that was interrupted, or at its end: judge_interruption() says
                  // whether it is one that blocks outside every lock of libc
    kLeaf,        // in memmove and its kin, called from user code
    kUnsafe,
};

// Whether a function of libc of this name calls nothing and takes no lock.
bool is_leaf_function(std::string_view name);

// Judges by registers and memory whether a thread may call pthread_create where it stands: it
// must hold no lock of libc, the loader or the allocator. Knows the modules of one process at one
// moment. Only reads.
class SafePoints {
  public:
    SafePoints(process::RemoteMemory memory, const std::vector<process::RemoteModule>& modules);

    Stand judge(const Stopped& stopped, bool has_made_a_call_outside_locks) const;
    // Whether a signal handler's frame lies between the stack pointer and `stack_end`.
    bool has_signal_frame(uint64_t stack_pointer, uint64_t stack_end) const;

  private:
    bool is_user_code(uint64_t address) const;
    bool in_ranges(const std::vector<process::RemoteModule::Range>& ranges, uint64_t address) const;
    bool is_leaf(const user_regs_struct& regs) const;
    bool called_from_allocator(const user_regs_struct& regs) const;

    process::RemoteMemory memory_;
    const std::vector<process::RemoteModule>* modules_;
    std::vector<process::RemoteModule::Range> user_code_;
    std::vector<process::RemoteModule::Range> libc_;
    std::vector<process::RemoteModule::Range> loader_;
    std::vector<process::RemoteModule::Range> allocator_; // preloaded ones
};

} // namespace speedbump::inject
