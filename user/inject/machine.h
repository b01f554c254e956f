// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>

#include "util/result.h"

// What differs between processors: machine_x86_64.cpp, machine_aarch64.cpp.
namespace speedbump::inject {

// kUnsupported, with what to do instead, where threads of other processes are not borrowed yet.
Result<void> can_borrow(pid_t pid);

// kUnsupported where the code of other processes is not changed, nor memory mapped for that.
Result<void> can_change_code(pid_t pid);

// The architecture that seccomp filters see (AUDIT_ARCH_*).
extern const uint32_t kAuditArchitecture;

// The system call by which glibc's poll() is made.
extern const char* const kPollName;
extern const int kPollCall;

// Of system calls of this processor alone, the one of every processor that blocks, and goes on
// after a stop, in the same way; others are what they are.
long common_call(long number);

// What the kernel stack of a thread (/proc/PID/task/TID/stack) tells of a system call.
struct CallOnStack {
    enum class State {
        kNone,
        kLeaving,
        kInside
    } state = State::kNone; // kLeaving: it has been made
    long number = -1;       // of kInside, where that is a call which no stop disturbs; else -1
};
CallOnStack call_on_stack(std::string_view kernel_stack);

// Where the address space of a process ends, or some way before.
extern const uint64_t kUserEnd;

} // namespace speedbump::inject
