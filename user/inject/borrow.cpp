// SPDX-License-Identifier: MIT
// Fire::Plan: looking at one thread after the other, and redirecting the first that stands well.
#include <fmt/format.h>
#include <sys/ptrace.h>

#include <cmath>
#include <csignal>
#include <cstring>

#include "inject/fire_plan.h"
#include "inject/hold.h"
#include "inject/process_state.h"
#include "inject/seccomp_check.h"
#include "process/ownership.h"

namespace speedbump::inject {
namespace {

using process::RemoteMemory;

// Below what is put on a borrowed stack: for the program's own signal handlers, whose frame has its
// place in the image.
constexpr uint64_t kHandlerRoom = 4096;
// A wait can't be longer than its time-out; more than this, and the clock is not to be trusted.
constexpr std::chrono::milliseconds kClockSlack{5};
} // namespace

// Redirects a thread that stands at a safe point: everything is written first, and the registers
// are set in one call, so a tracer that dies leaves a thread that either knows of nothing or needs
// nobody. False when the thread can't be used.
Result<bool> Fire::Plan::borrow(pid_t tid, const Resumption& wanted) {
    std::optional<ExtendedState> extended = read_extended_state(tid);
    if (!extended) return false;
    if (!extended->can_be_restored) {
        doubts[tid] = "uses the registers of a matrix unit, which would not be brought back";
        return false;
    }
    uint64_t signal_mask = 0;
    if (ptrace(PTRACE_GETSIGMASK, tid, 8, &signal_mask) != 0) return false;

    const user_regs_struct& regs = wanted.regs;
    const uint64_t stack_pointer = stack_pointer_of(regs);
    const Image image = make_image(wanted, *extended, signal_mask, block);
    const std::optional<uint64_t> floor =
        space.stack_floor(memory, stack_pointer, thread_block_of(tid, regs, thread_block));
    if (!floor || image.start < *floor + kHandlerRoom) {
        doubts[tid] =
            floor ? fmt::format("has {} bytes of stack left, and an attach needs {}",
                                stack_pointer - *floor, stack_pointer - image.start + kHandlerRoom)
                  : "runs on a stack that is not the thread's own, whose end is not known";
        too_deep[tid] = stack_pointer;
        return false;
    }
    if (!write_stack(image.start, image.bytes.data(), image.bytes.size())) return false;
    if (!set_registers(tid, start_at(regs, stub, image.entry, image.block))) return false;
    fired = true;
    resumption = wanted;
    mask = signal_mask;
    block_at = image.block;
    frame_at = image.context;
    image_at = image.start;
    image_end = image.end;
    report.borrowed = tid;
    report.region = block.region;
    return true;
}

// Since when a thread has been waiting in a call whose time is relative, or nothing.
std::optional<WaitWatch::Wait> Fire::Plan::known_wait(pid_t tid, const BlockedCall& call) {
    std::optional<WaitWatch::Wait> wait = waits.look(tid);
    const std::chrono::milliseconds limit{static_cast<int32_t>(call.arguments[3])};
    if (wait && Clock::now() - wait->begin <= limit + kClockSlack) return wait;
    doubts[tid] = "waits in epoll_wait with a time-out, and the kernel does not tell since when";
    return std::nullopt;
}

// For a held thread, how long its call had waited; a call that is none of before has just begun.
uint64_t Fire::Plan::waited_ms(pid_t tid, const std::optional<WaitWatch::Wait>& before) const {
    if (!before) return 0;
    const std::optional<LastRun> after = read_last_run(pid, tid);
    // Once: into the stop. More often: it had woken in between.
    if (!after || after->switches > before->switches + 1) return 0;
    const std::chrono::duration<double, std::milli> waited = Clock::now() - before->begin;
    return static_cast<uint64_t>(std::llround(waited.count()));
}

// Whether a held thread stands well, but for its stack.
bool Fire::Plan::may_be_borrowed(pid_t tid, const Stopped& stopped) {
    const std::optional<ThreadStatus> status = read_status(pid, tid);
    if (!status) return false;
    auto forbidden = seccomp_obstacle(pid, tid, status->seccomp, *calls);
    if (!forbidden)
        if (const auto never = why_never(tid))
            forbidden = make_error(ErrorKind::kUnsupported,
                                   fmt::format("process {}: thread {} {}", pid, tid, *never));
    if (forbidden) {
        refused.insert(tid);
        if (!refusal) refusal = std::move(forbidden);
        return false;
    }
    if (stopped.in_kernel && (status->pending_signals & ~status->blocked_signals) != 0)
        return false;
    if (stopped.call &&
        judge_interruption(pid, pid_fd.get(), *stopped.call) == Interruption::kHarmful)
        return false;
    // At the end of a call that blocks outside every lock of libc it is where it was inside.
    const bool has_no_lock = stopped.made && judge_interruption(pid, pid_fd.get(), *stopped.made) !=
                                                 Interruption::kHarmful;
    if (is_in_restartable_sequence(memory, tid, program_counter_of(stopped.regs))) return false;
    const uint64_t stack_pointer = stack_pointer_of(stopped.regs);
    return safe_points.judge(stopped, has_no_lock) != Stand::kUnsafe &&
           !safe_points.has_signal_frame(stack_pointer, space.stack_end(stack_pointer));
}

Result<Fire::Plan::Look> Fire::Plan::look(pid_t tid, Clock::time_point deadline) {
    if (refused.contains(tid)) return Look::kUnsafe;
    const std::optional<BlockedCall> call = watch_for_call(pid, tid);
    const auto deep = too_deep.find(tid);
    if (call && deep != too_deep.end() && deep->second == call->stack_pointer)
        return Look::kUnsafe; // as deep as when it was last stopped
    std::optional<WaitWatch::Wait> wait;
    if (call && call->number >= 0) {
        const Interruption interruption = judge_interruption(pid, pid_fd.get(), *call);
        if (interruption == Interruption::kHarmful) return Look::kUnsafe;
        if (interruption == Interruption::kRelativeTime) {
            wait = known_wait(tid, *call);
            if (!wait) return Look::kUnsafe;
        }
    }

    doubts.erase(tid); // not before: what waits for a CPU after a stop is as deep as it was
    Clock::time_point begin;
    Seen seen;
    switch (hold_thread(pid, tid, deadline, begin, &seen)) {
        case Hold::kHeld:
            break;
        case Hold::kGone:
            return Look::kGone;
        case Hold::kAsked:
            if (lacks_a_cpu(pid, tid)) doubts[tid] = "gets no CPU, which it needs to stop";
            return Look::kStuck;
        case Hold::kRefused:
            if (std::optional<Error> reason = obstacle(pid)) return std::move(*reason);
            return process::access_error(pid, "ptrace", EPERM);
        case Hold::kStoppedBySignal:
            if (std::optional<Error> reason = obstacle(pid)) return std::move(*reason);
            return Look::kUnsafe;
    }
    ++report.looks;
    auto release = [&] {
        release_thread(tid);
        report.stopped += Clock::now() - begin;
    };

    if (!is_prepared(tid)) {
        release();
        return make_error(ErrorKind::kIo,
                          fmt::format("process {} runs another program by now", pid));
    }
    const std::optional<Stopped> stopped = read_stopped(pid, tid, seen);
    if (!stopped) {
        release();
        return Look::kGone;
    }
    if (stopped->is_unclear)
        doubts[tid] = "stands at a system call, and whether that has begun is not known";
    std::optional<Resumption> possible = resumption_of(memory, *stopped, waited_ms(tid, wait));
    if (possible && may_be_borrowed(tid, *stopped)) {
        Result<bool> borrowed = borrow(tid, *possible);
        if (!borrowed || *borrowed) {
            release();
            if (!borrowed) return std::move(borrowed.error());
            return Look::kFired;
        }
    }
    let_go(pid, tid, possible ? possible->released : std::nullopt);
    report.stopped += Clock::now() - begin;
    return Look::kUnsafe;
}

// Whether a held thread is in the memory where the stub was put, not in that of a program that was
// exec'd since: nothing that is known of the one is true of the other, which may have other rights.
bool Fire::Plan::is_prepared(pid_t tid) const {
    const Bytes bytes = stub_bytes();
    std::vector<std::byte> there(bytes.size);
    return RemoteMemory(tid).read(stub, there.data(), there.size()) &&
           std::memcmp(there.data(), bytes.data, bytes.size) == 0;
}

// Why no thread was borrowed in time.
Error Fire::Plan::give_up() const {
    if (std::optional<Error> reason = obstacle(pid)) return std::move(*reason);
    if (std::optional<Error> reason = uninterruptible(pid)) return std::move(*reason);
    if (refusal) return *refusal;
    std::string text = fmt::format(
        "process {}: in {} looks no thread stood where it could be "
        "interrupted safely",
        pid, report.looks);
    if (!doubts.empty())
        text += fmt::format("; thread {} {}", doubts.begin()->first, doubts.begin()->second);
    return make_error(ErrorKind::kTimeout, text);
}

// Whether a handler interrupted the borrowed thread just before it issued its call again, by the
// frame that the kernel made for it over the image: its ucontext holds the stack pointer and,
// after it, the address of the call.
bool Fire::Plan::had_late_signal() const {
    std::vector<uint64_t> words((image_end - image_at) / 8);
    if (!memory.read(image_at, words.data(), words.size() * 8)) return false;
    for (size_t i = kStackPointerWord; i + 1 < words.size(); ++i) {
        const bool is_ours = image_at + (i - kStackPointerWord) * 8 == frame_at;
        if (!is_ours && words[i] == stack_pointer_of(resumption.regs) &&
            words[i + 1] == program_counter_of(resumption.regs))
            return true;
    }
    return false;
}

} // namespace speedbump::inject
