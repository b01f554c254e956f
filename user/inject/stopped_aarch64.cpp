// SPDX-License-Identifier: MIT
// Before its tracer sees a thread that a stop has got out of a system call, an arm64 kernel has the
// registers ready for the call to be issued again, or with its error, and keeps what it will do to
// itself (do_signal() in arch/arm64/kernel/signal.c): a thread in a call looks like one right
// before it. What call it was is seen before the stop, once it is certain that no handler runs
// unseen.
#include "inject/stopped.h"

#include <elf.h>
#include <fmt/format.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>

#include "inject/blocking_call.h"
#include "inject/fire.h"
#include "inject/hold.h"
#include "inject/machine.h"
#include "util/clock.h"
#include "util/proc.h"

namespace speedbump::inject {
namespace {

// The kernel's, never seen by a program: include/linux/errno.h.
constexpr int64_t kErestartSys = 512;
constexpr int64_t kErestartNoHand = 514;
constexpr int64_t kErestartBlock = 516;

constexpr uint32_t kSvc = 0xd4000001; // svc #0
constexpr size_t kNumber = 8;         // x8: of the call
constexpr size_t kTimeout = 3;        // x3: its fourth argument
// Of pstate: the branch type (BTI), single step, and an illegal state.
constexpr uint64_t kStateToClear = 3 << 10 | 1 << 21 | 1 << 20;
constexpr uint64_t kIs32Bit = 1 << 4;
constexpr int kThreadPointerSet = 0x401; // NT_ARM_TLS
constexpr int kControlStackSet = 0x410;  // NT_ARM_GCS, absent in older headers
constexpr uint64_t kHasControlStack = 1; // PR_SHADOW_STACK_ENABLE
// How long a thread that was let go may take to its call.
constexpr std::chrono::milliseconds kIntoCall{50};

std::optional<user_regs_struct> read_registers(pid_t tid) {
    user_regs_struct regs{};
    iovec buffer{&regs, sizeof(regs)};
    if (ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &buffer) != 0) return std::nullopt;
    if (buffer.iov_len != sizeof(regs)) regs.pstate = kIs32Bit; // of a 32-bit program
    return regs;
}

std::string file_of(pid_t pid, pid_t tid, const char* name) {
    return read_proc(fmt::format("/proc/{}/task/{}/{}", pid, tid, name));
}

uint64_t switches_of(pid_t pid, pid_t tid) {
    const std::optional<ThreadStatus> status = read_status(pid, tid);
    return status ? status->switches : 0;
}

bool has_handler(pid_t pid, pid_t tid, int signal) {
    const std::string status = file_of(pid, tid, "status");
    const uint64_t caught =
        std::strtoull(std::string(status_field(status, "SigCgt")).c_str(), nullptr, 16);
    return signal > 0 && signal <= 64 && (caught >> (signal - 1) & 1) != 0;
}

// With which error a stop ends a call that judge_interruption() takes for harmless, by the kernel's
// sources. Of the others it does not matter: their threads are let go as they are.
int64_t restart_error(const BlockedCall& call) {
    switch (call.number) {
        case SYS_nanosleep:
        case SYS_restart_syscall:
            return -kErestartBlock;
        case SYS_clock_nanosleep:
            return (call.arguments[1] & TIMER_ABSTIME) != 0 ? -kErestartNoHand : -kErestartBlock;
        case SYS_futex:
            return call.arguments[3] != 0 ? -kErestartBlock : -kErestartSys;
        case SYS_ppoll:
        case SYS_pselect6:
            return -kErestartNoHand;
        default:
            return -kErestartSys;
    }
}

// The call of a thread that stands where it is issued, by its registers.
BlockedCall call_of(const user_regs_struct& regs, uint64_t after) {
    BlockedCall call;
    call.number = static_cast<long>(regs.regs[kNumber]);
    std::copy_n(regs.regs, 6, call.arguments);
    call.stack_pointer = regs.sp;
    call.program_counter = after;
    return call;
}

// Whether a call that failed is the one that was seen: its first argument is lost, and the others
// are what they were; the thread has given up its CPU once since, for the stop.
bool is_same(const BlockedCall& seen, const user_regs_struct& regs, uint64_t switches_between) {
    return std::equal(seen.arguments + 1, seen.arguments + 6, regs.regs + 1) &&
           switches_between == 1;
}

} // namespace

const uint64_t kCallSize = 4;

Seen see(pid_t pid, pid_t tid) {
    Seen seen;
    uint64_t before = 0;
    do {
        before = switches_of(pid, tid);
        seen.call = read_blocked_call(pid, tid);
        seen.switches = switches_of(pid, tid);
    } while (seen.call && seen.switches != before);
    if (seen.call && seen.call->number < 0) seen.call.reset();
    return seen;
}

Stopped stopped_of(const user_regs_struct& regs) {
    Stopped stopped;
    stopped.regs = regs;
    stopped.is_64_bit = (regs.pstate & kIs32Bit) == 0;
    return stopped;
}

std::optional<Stopped> read_stopped(pid_t pid, pid_t tid, const Seen& seen) {
    const auto regs = read_registers(tid);
    if (!regs) return std::nullopt;
    Stopped stopped = stopped_of(*regs);
    if (!stopped.is_64_bit) return stopped;
    const process::RemoteMemory memory(pid);
    const bool is_before = memory.value<uint32_t>(regs->pc) == kSvc;
    const bool is_behind = memory.value<uint32_t>(regs->pc - kCallSize) == kSvc;
    const bool has_failed = is_behind && static_cast<int64_t>(regs->regs[0]) == -EINTR;
    if (!is_before && !has_failed) return stopped;
    stopped.in_kernel = true;
    stopped.is_unclear = true; // until it is known
    if (!seen.call || seen.signalled || seen.call->stack_pointer != regs->sp ||
        seen.call->number != static_cast<long>(regs->regs[kNumber]))
        return stopped;
    if (is_before && !is_behind && seen.call->program_counter == regs->pc + kCallSize) {
        const BlockedCall call = call_of(*regs, regs->pc + kCallSize);
        const int64_t error = restart_error(call);
        // One that is issued by itself, not again, sleeps for its whole time: whether the thread
        // came from there only its kernel stack says.
        if (error == -kErestartBlock &&
            call_on_stack(file_of(pid, tid, "stack")).state == CallOnStack::State::kNone)
            return stopped;
        stopped.call = call;
        stopped.error = error;
        stopped.is_unclear = false;
    } else if (has_failed && seen.call->program_counter == regs->pc &&
               is_same(*seen.call, *regs, switches_of(pid, tid) - seen.switches)) {
        stopped.call = call_of(*regs, regs->pc);
        stopped.call->arguments[0] = seen.call->arguments[0];
        stopped.error = -EINTR;
        stopped.is_unclear = false;
    }
    return stopped;
}

uint64_t stack_pointer_of(const user_regs_struct& regs) {
    return regs.sp;
}

uint64_t program_counter_of(const user_regs_struct& regs) {
    return regs.pc;
}

bool set_registers(pid_t tid, const user_regs_struct& regs) {
    iovec buffer{const_cast<user_regs_struct*>(&regs), sizeof(regs)};
    return ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, &buffer) == 0;
}

// It lies right before where the thread pointer leads, and glibc tells debuggers how long it is.
std::optional<uint64_t> thread_block_distance(const process::RemoteMemory& memory,
                                              const std::vector<process::RemoteModule>& modules) {
    const auto told = find_in_libc(modules, "_thread_db_sizeof_pthread");
    return told ? memory.value<uint32_t>(*told) : std::nullopt;
}

uint64_t thread_block_of(pid_t tid, const user_regs_struct&, std::optional<uint64_t> distance) {
    uint64_t pointer = 0;
    iovec buffer{&pointer, sizeof(pointer)};
    if (!distance || ptrace(PTRACE_GETREGSET, tid, kThreadPointerSet, &buffer) != 0) return 0;
    return pointer - *distance;
}

std::optional<Resumption> resumption_of(const process::RemoteMemory& memory, const Stopped& stopped,
                                        uint64_t waited_ms) {
    Resumption result;
    result.regs = stopped.regs;
    if (!stopped.call) return result;
    const BlockedCall& call = *stopped.call;
    const bool failed = stopped.error == -EINTR;
    if (failed && !may_be_issued_again(call.number)) return std::nullopt;
    result.regs.pc = call.program_counter - kCallSize;
    if (memory.value<uint32_t>(result.regs.pc) != kSvc) return std::nullopt;
    result.regs.regs[0] = call.arguments[0];
    switch (-stopped.error) {
        case kErestartBlock:
            result.mode = kResumeRestart;
            result.regs.regs[kNumber] = SYS_restart_syscall;
            break;
        case kErestartSys:
            result.repeat = kRepeatUnlessSignal;
            break;
        default:
            result.repeat = kRepeatUnlessAnySignal;
            break;
    }
    result.number = static_cast<int64_t>(result.regs.regs[kNumber]);
    if (failed) {
        const auto timeout = static_cast<int32_t>(call.arguments[kTimeout]);
        if (timeout > 0 && has_relative_time(call.number)) {
            const auto left = static_cast<uint64_t>(timeout);
            result.regs.regs[kTimeout] = left - std::min(left, waited_ms);
            result.time_left = Resumption::TimeLeft{};
        }
        result.released = result.regs;
    }
    // These leave what is left in memory, and are started over with it.
    const uint64_t time = call.number == SYS_ppoll      ? call.arguments[2]
                          : call.number == SYS_pselect6 ? call.arguments[4]
                                                        : 0;
    if (time != 0) result.time_left = Resumption::TimeLeft{time, 1};
    return result;
}

user_regs_struct start_at(const user_regs_struct& regs, uint64_t code, uint64_t stack,
                          uint64_t argument) {
    user_regs_struct start = regs;
    start.pc = code;
    start.sp = stack;
    start.regs[0] = argument;
    start.pstate &= ~kStateToClear;
    return start;
}

// A call that has failed is issued again while the thread is still watched: a handler that comes
// before it finds that the call has failed, as it would have without us.
void let_go(pid_t pid, pid_t tid, const std::optional<user_regs_struct>& released) {
    if (!released || !set_registers(tid, *released) ||
        ptrace(PTRACE_SETOPTIONS, tid, nullptr, PTRACE_O_TRACESYSGOOD) != 0)
        return release_thread(tid);
    const Clock::time_point end = Clock::now() + kIntoCall;
    long signal = 0;
    for (;;) {
        if (ptrace(PTRACE_SYSCALL, tid, nullptr, signal) != 0) return;
        siginfo_t info{};
        while (waitid(P_PID, static_cast<id_t>(tid), &info, WSTOPPED | __WALL | WNOHANG) == 0 &&
               info.si_pid == 0 && Clock::now() < end)
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        if (info.si_pid == 0) return; // the end of the calling thread gives it back
        signal = info.si_status;
        if (signal == (SIGTRAP | 0x80) || signal >> 8 != 0) return release_thread(tid);
        if (has_handler(pid, tid, static_cast<int>(signal))) break;
    }
    auto now = read_registers(tid);
    if (now && now->pc == released->pc && now->sp == released->sp) {
        now->pc += kCallSize;
        now->regs[0] = static_cast<unsigned long long>(-EINTR);
        set_registers(tid, *now);
    }
    ptrace(PTRACE_DETACH, tid, nullptr, signal);
}

void fail_call(pid_t tid, const Resumption& resumption) {
    auto now = read_registers(tid);
    if (!now || now->pc != resumption.regs.pc || now->sp != resumption.regs.sp ||
        static_cast<int64_t>(now->regs[kNumber]) != resumption.number)
        return; // one that fails by the stop itself has failed
    now->pc += kCallSize;
    now->regs[0] = static_cast<unsigned long long>(-EINTR);
    set_registers(tid, *now);
}

std::optional<std::string> why_never(pid_t tid) {
    uint64_t words[3] = {}; // struct user_gcs: what is enabled comes first
    iovec buffer{words, sizeof(words)};
    if (ptrace(PTRACE_GETREGSET, tid, kControlStackSet, &buffer) != 0 ||
        (words[0] & kHasControlStack) == 0)
        return std::nullopt;
    return "runs with a guarded control stack (GCS), which attaching can't handle";
}

} // namespace speedbump::inject
