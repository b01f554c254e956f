// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>
#include <sys/user.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "inject/payload.h"
#include "inject/process_state.h"
#include "process/remote_elf.h"

namespace speedbump::inject {

// Where a stopped thread stands, as far as borrowing it goes.
enum class Stand {
    kUserCode,    // in the interpreter, or in a library that is no part of libc or an allocator
    kBlockedCall, // in a system call that was interrupted: judge_interruption() says whether it
                  // is one that blocks outside every lock of libc
    kLeaf,        // in memmove and its kin, called from user code
    kUnsafe,
};

// Judges by registers and memory whether a thread may call pthread_create where it stands: it
// must hold no lock of libc, the loader or the allocator. Knows the modules of one process at one
// moment. Only reads.
class SafePoints {
  public:
    SafePoints(process::RemoteMemory memory, const std::vector<process::RemoteModule>& modules);

    Stand judge(const user_regs_struct& regs) const;
    // Whether a signal handler's frame lies between the stack pointer and `stack_end`.
    bool has_signal_frame(uint64_t stack_pointer, uint64_t stack_end) const;

  private:
    bool is_user_code(uint64_t address) const;
    bool in_ranges(const std::vector<process::RemoteModule::Range>& ranges, uint64_t address) const;
    bool is_leaf(const user_regs_struct& regs) const;
    bool called_from_allocator(uint64_t stack_pointer) const;

    process::RemoteMemory memory_;
    const std::vector<process::RemoteModule>* modules_;
    std::vector<process::RemoteModule::Range> user_code_;
    std::vector<process::RemoteModule::Range> libc_;
    std::vector<process::RemoteModule::Range> loader_;
    std::vector<process::RemoteModule::Range> allocator_; // preloaded ones
};

// The registers with which an interrupted thread goes on as if it had never been stopped.
struct Resumption {
    user_regs_struct regs{};
    ResumeMode mode = kResumeFrame;
    Repeat repeat = kRepeatNothing;
    // Of a call that is issued again with a relative time-out: where that lies (see Block).
    struct TimeLeft {
        uint64_t address = kTimeInRegister;
        uint64_t unit_ns = 1; // of its second word
    };
    std::optional<TimeLeft> time_left;
    // For a thread that is let go at once, where its own registers would not do: the kernel then
    // restarts the call, or makes it fail when a signal has come, as only it can know.
    std::optional<user_regs_struct> released;
};

// The system call that a stopped thread was in.
BlockedCall call_of(const user_regs_struct& regs);
// Whether a stopped thread stands in a system call that the stop has interrupted.
bool was_interrupted(const user_regs_struct& regs);

// The kernel's own restart work, for a thread stopped with `regs`. `waited_ms` is how long a call
// with a relative time-out has been waiting; it is taken off. Nothing when the call site is none,
// or when the call must not be issued again.
std::optional<Resumption> resumption_of(const process::RemoteMemory& memory,
                                        const user_regs_struct& regs, uint64_t waited_ms);

} // namespace speedbump::inject
