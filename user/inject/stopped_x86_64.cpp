// SPDX-License-Identifier: MIT
#include <sys/ptrace.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>

#include "inject/blocking_call.h"
#include "inject/hold.h"
#include "inject/stopped.h"

namespace speedbump::inject {
namespace {

// The kernel's, never seen by a program: include/linux/errno.h.
constexpr int64_t kErestartSys = 512;
constexpr int64_t kErestartNoIntr = 513;
constexpr int64_t kErestartNoHand = 514;
constexpr int64_t kErestartBlock = 516;

constexpr uint64_t kUserCodeSelector = 0x33;
constexpr uint64_t kNoCall = ~uint64_t{0}; // in orig_rax: nothing for the kernel to restart
constexpr uint64_t kFlagsToClear = 0x100 | 0x400 | 0x40000; // TF, DF, AC

bool is_interrupted(const user_regs_struct& regs) {
    if (static_cast<int64_t>(regs.orig_rax) < 0) return false;
    switch (-static_cast<int64_t>(regs.rax)) {
        case kErestartSys:
        case kErestartNoIntr:
        case kErestartNoHand:
        case kErestartBlock:
        case EINTR:
            return true;
        default:
            return false;
    }
}

} // namespace

const uint64_t kCallSize = 2;

Seen see(pid_t, pid_t) {
    return {};
}

Stopped stopped_of(const user_regs_struct& regs) {
    Stopped stopped;
    stopped.regs = regs;
    stopped.is_64_bit = regs.cs == kUserCodeSelector;
    stopped.in_kernel = static_cast<int64_t>(regs.orig_rax) >= 0;
    if (!stopped.in_kernel) return stopped;
    const BlockedCall call{static_cast<long>(regs.orig_rax),
                           {regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9},
                           regs.rsp,
                           regs.rip};
    const auto result = static_cast<int64_t>(regs.rax);
    if (is_interrupted(regs)) {
        stopped.error = result;
        stopped.call = call;
    } else if (result != -ENOSYS) { // which is there before a call, too
        stopped.made = call;
    }
    return stopped;
}

std::optional<Stopped> read_stopped(pid_t, pid_t tid, const Seen&) {
    user_regs_struct regs = {};
    if (ptrace(PTRACE_GETREGS, tid, nullptr, &regs) != 0) return std::nullopt;
    return stopped_of(regs);
}

uint64_t stack_pointer_of(const user_regs_struct& regs) {
    return regs.rsp;
}

uint64_t program_counter_of(const user_regs_struct& regs) {
    return regs.rip;
}

bool set_registers(pid_t tid, const user_regs_struct& regs) {
    return ptrace(PTRACE_SETREGS, tid, nullptr, &regs) == 0;
}

std::optional<uint64_t> thread_block_distance(const process::RemoteMemory&,
                                              const std::vector<process::RemoteModule>&) {
    return 0;
}

uint64_t thread_block_of(pid_t, const user_regs_struct& regs, std::optional<uint64_t> distance) {
    return regs.fs_base - distance.value_or(0);
}

std::optional<Resumption> resumption_of(const process::RemoteMemory& memory, const Stopped& stopped,
                                        uint64_t waited_ms) {
    const user_regs_struct& regs = stopped.regs;
    Resumption result;
    result.regs = regs;
    if (!stopped.call) return result;
    const bool failed = stopped.error == -EINTR;
    if (failed && !may_be_issued_again(static_cast<long>(regs.orig_rax))) return std::nullopt;
    std::optional<uint16_t> instruction = memory.value<uint16_t>(regs.rip - kCallSize);
    constexpr uint16_t kSyscall = 0x050f;
    if (!instruction || *instruction != kSyscall) return std::nullopt;
    result.regs.rip = regs.rip - kCallSize;
    result.regs.rax = regs.orig_rax;
    switch (-stopped.error) {
        case kErestartBlock:
            result.mode = kResumeRestart;
            result.regs.rax = SYS_restart_syscall;
            break;
        case kErestartNoIntr:
            break;
        case kErestartSys:
            result.repeat = kRepeatUnlessSignal;
            break;
        default:
            result.repeat = kRepeatUnlessAnySignal;
            break;
    }
    result.number = static_cast<int64_t>(result.regs.rax);
    if (failed && has_relative_time(static_cast<long>(regs.orig_rax))) {
        auto timeout = static_cast<int32_t>(regs.r10);
        if (timeout > 0) {
            const auto left = static_cast<uint64_t>(timeout);
            result.regs.r10 = left - std::min(left, waited_ms);
            result.time_left = Resumption::TimeLeft{};
        }
    }
    // These leave what is left in memory, and the kernel starts them over with it.
    if (-stopped.error == kErestartNoHand) {
        const uint64_t time = regs.orig_rax == SYS_ppoll ? regs.rdx
                              : regs.orig_rax == SYS_pselect6 || regs.orig_rax == SYS_select
                                  ? regs.r8
                                  : 0;
        const uint64_t unit_ns = regs.orig_rax == SYS_select ? 1000 : 1;
        if (time != 0) result.time_left = Resumption::TimeLeft{time, unit_ns};
    }
    // The kernel then restarts the call, or makes it fail when a signal has come, as only it can
    // know.
    if (failed) {
        result.released = regs;
        result.released->r10 = result.regs.r10;
        result.released->rax = static_cast<uint64_t>(-kErestartNoHand);
    }
    return result;
}

user_regs_struct start_at(const user_regs_struct& regs, uint64_t code, uint64_t stack,
                          uint64_t argument) {
    user_regs_struct start = regs;
    start.rip = code;
    start.rsp = stack;
    start.rdi = argument;
    start.orig_rax = kNoCall;
    start.rax = 0;
    start.eflags &= ~static_cast<unsigned long long>(kFlagsToClear);
    return start;
}

void let_go(pid_t, pid_t tid, const std::optional<user_regs_struct>& released) {
    if (released) set_registers(tid, *released);
    release_thread(tid);
}

void fail_call(pid_t tid, const Resumption& resumption) {
    const user_regs_struct& regs = resumption.regs;
    user_regs_struct now = {};
    if (ptrace(PTRACE_GETREGS, tid, nullptr, &now) != 0 || now.orig_rax != regs.rax ||
        now.rip != regs.rip + kCallSize || now.rsp != regs.rsp || !is_interrupted(now))
        return;
    now.orig_rax = kNoCall;
    now.rax = static_cast<uint64_t>(-EINTR);
    set_registers(tid, now);
}

// Shadow stacks are seen from outside: obstacle().
std::optional<std::string> why_never(pid_t) {
    return std::nullopt;
}

} // namespace speedbump::inject
