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
#include "process/memory.h"
#include "process/remote_elf.h"

// The registers of a thread that is held by ptrace: what they tell, and with which it goes on.
// stopped_x86_64.cpp, stopped_aarch64.cpp.
namespace speedbump::inject {

// What was seen of a thread between the moment from which on its tracer is told of each signal that
// it gets and the stop.
struct Seen {
    std::optional<BlockedCall> call; // that it was blocked in
    uint64_t switches = 0;           // how often it had given up its CPU by then
    bool signalled = false;          // a signal was delivered since
};
// Of a seized thread that still runs. Where registers tell all there is nothing to be seen.
Seen see(pid_t pid, pid_t tid);

struct Stopped {
    user_regs_struct regs{};
    bool is_64_bit = true;
    // Whether it was on its way out of a system call.
    bool in_kernel = false;
    // The call that the stop has interrupted, as it was issued, and the error with which it ended:
    // -ERESTART*, which no program ever sees, or -EINTR.
    std::optional<BlockedCall> call;
    int64_t error = 0;
    // The call that is made and whose end it stands at, before the first instruction after it.
    std::optional<BlockedCall> made;
    // It may be in a call, but nobody knows how that would go on.
    bool is_unclear = false;
};

// What the registers alone tell.
Stopped stopped_of(const user_regs_struct& regs);
// Of a held thread; nothing when it is gone.
std::optional<Stopped> read_stopped(pid_t pid, pid_t tid, const Seen& seen);

uint64_t stack_pointer_of(const user_regs_struct& regs);
uint64_t program_counter_of(const user_regs_struct& regs);
// Whether a thread that stands there is within a restartable sequence (rseq(2)): the kernel aborts
// one after a stop, by where the thread then goes on, which a borrowed one does elsewhere. False
// where the kernel does not tell (before Linux 5.13).
bool is_in_restartable_sequence(const process::RemoteMemory& memory, pid_t tid, uint64_t counter);

bool set_registers(pid_t tid, const user_regs_struct& regs);

// How far before the place of its thread pointer glibc keeps what it knows of a thread (struct
// pthread); nothing where glibc does not say so.
std::optional<uint64_t> thread_block_distance(const process::RemoteMemory& memory,
                                              const std::vector<process::RemoteModule>& modules);
// Where that of a held thread lies; 0: not known.
uint64_t thread_block_of(pid_t tid, const user_regs_struct& regs, std::optional<uint64_t> distance);

extern const uint64_t kCallSize; // bytes of the instruction that issues a system call

// The registers with which an interrupted thread goes on as if it had never been stopped.
struct Resumption {
    user_regs_struct regs{};
    ResumeMode mode = kResumeFrame;
    Repeat repeat = kRepeatNothing;
    int64_t number = -1; // of the call that is issued again
    // Of a call that is issued again with a relative time-out: where that lies (see Block).
    struct TimeLeft {
        uint64_t address = kTimeInRegister;
        uint64_t unit_ns = 1; // of its second word
    };
    std::optional<TimeLeft> time_left;
    // For a thread that is let go at once, where its own registers would not do; see let_go().
    std::optional<user_regs_struct> released;
};

// The kernel's own restart work, for a stopped thread. `waited_ms` is how long a call with a
// relative time-out in a register had been waiting. Nothing where that can't be done.
std::optional<Resumption> resumption_of(const process::RemoteMemory& memory, const Stopped& stopped,
                                        uint64_t waited_ms);

// The registers with which a thread that goes on at `code` has a stack and an argument of its own,
// and no call that the kernel would restart.
user_regs_struct start_at(const user_regs_struct& regs, uint64_t code, uint64_t stack,
                          uint64_t argument);

// Lets a held thread go that is used for nothing. With `released`: its call goes on, unless a
// signal comes that makes it fail.
void let_go(pid_t pid, pid_t tid, const std::optional<user_regs_struct>& released);

// Makes the call that a held thread was resumed in fail with EINTR, if it is in it again.
void fail_call(pid_t tid, const Resumption& resumption);

// Why a held thread will never be borrowed, whatever it does: how it runs is not understood here.
std::optional<std::string> why_never(pid_t tid);

} // namespace speedbump::inject
