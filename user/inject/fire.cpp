// SPDX-License-Identifier: MIT
#include "inject/fire.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "inject/address_space.h"
#include "inject/blocking_call.h"
#include "inject/frame.h"
#include "inject/hold.h"
#include "inject/payload.h"
#include "inject/process_state.h"
#include "inject/safe_point.h"
#include "inject/seccomp_check.h"
#include "inject/wait_watch.h"
#include "process/ownership.h"
#include "process/threads.h"
#include "util/clock.h"
#include "util/proc.h"

namespace speedbump::inject {
namespace {

using process::RemoteMemory;
using process::RemoteModule;

constexpr uint64_t kAllSignals = ~uint64_t{0};
constexpr uint64_t kUncatchable = (1ULL << (SIGKILL - 1)) | (1ULL << (SIGSTOP - 1));
// glibc's own, which the first pthread_create() of a process lets through (late_init(), 2.34).
constexpr uint64_t kGlibcSignals = (1ULL << (32 - 1)) | (1ULL << (33 - 1));
constexpr uint64_t kSyscallSize = 2; // bytes of the instruction
// How long a borrowed thread may take from its answer to the call that it issues again.
constexpr std::chrono::milliseconds kBackTimeout{5};
constexpr uint64_t kFlagsToClear = 0x100 | 0x400 | 0x40000; // TF, DF, AC
// Below what is put on a borrowed stack: for the program's own signal handlers, whose frame has its
// place in the image.
constexpr uint64_t kHandlerRoom = 4096;
// A wait can't be longer than its time-out; more than this, and the clock is not to be trusted.
constexpr std::chrono::milliseconds kClockSlack{5};
// A thread that runs is looked at this often before it is stopped: one that only shows up between
// two waits might be just about to wait.
constexpr int kLooksAtRunning = 3;
constexpr std::chrono::microseconds kBetweenLooks{50};
// A thread gets at least so long to come to its first stop, whatever was spent on looking at the
// process: one that has to wait for a CPU may take its time.
constexpr std::chrono::milliseconds kFirstStop{250};
constexpr std::chrono::milliseconds kFirstLook = 8 * kFirstStop; // all threads together
constexpr long kUnknownCall = std::numeric_limits<long>::max();  // on no list

void sleep_for(nanoseconds duration) {
    std::this_thread::sleep_for(duration);
}

// Whether a thread with this signal mask may be in the stub, where all signals are blocked.
bool may_be_in_stub(uint64_t mask) {
    return (mask | kUncatchable | kGlibcSignals) == kAllSignals;
}

BlockedCall call_of(const user_regs_struct& regs) {
    return {static_cast<long>(regs.orig_rax),
            {regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9},
            regs.rsp,
            regs.rip};
}

// The call that a thread is in; nothing when it runs and goes on running for a moment. One that
// waits for a CPU counts as running, wherever it is: in a call that has moved data already, too.
// Its kernel stack tells; that of a thread that has a CPU is empty.
std::optional<BlockedCall> watch_for_call(pid_t pid, pid_t tid) {
    const std::string stack = fmt::format("/proc/{}/task/{}/stack", pid, tid);
    for (int look = 0;;) {
        if (std::optional<BlockedCall> call = read_blocked_call(pid, tid)) return call;
        if (read_proc(stack).find("do_syscall_64") != std::string::npos) {
            BlockedCall unknown;
            unknown.number = kUnknownCall;
            return unknown;
        }
        if (++look == kLooksAtRunning) return std::nullopt;
        sleep_for(kBetweenLooks);
    }
}

} // namespace

struct Fire::Plan {
    pid_t pid = 0;
    RemoteMemory memory{0};
    SafePoints safe_points;
    AddressSpace space;
    WaitWatch waits;
    Fd pid_fd;
    Fd memory_file;
    uint64_t stub = 0;
    bool stub_is_there = false;
    bool stub_was_there = false;
    bool fired = false;
    bool answered = false;
    uint64_t block_at = 0;
    Block block{}; // what does not depend on the thread
    FireReport report;
    Resumption resumption; // of the borrowed thread
    uint64_t mask = 0;     // of its signals, before
    uint64_t frame_at = 0; // where its ucontext lies
    uint64_t image_at = 0; // what was written below its stack, from the canary
    uint64_t image_end = 0;

    Plan(pid_t target, const std::vector<RemoteModule>& modules)
        : pid(target), memory(target), safe_points(RemoteMemory(target), modules), waits(target) {}

    std::set<pid_t> refused;             // threads that will never do
    std::optional<Error> refusal;        // why the first of them will not
    std::map<pid_t, std::string> doubts; // why others did not do when they were last looked at
    std::map<pid_t, uint64_t> too_deep;  // stack pointers with which they have no room

    enum class Look { kFired, kUnsafe, kGone, kStuck };
    Result<Look> look(pid_t tid, Clock::time_point deadline);
    std::optional<WaitWatch::Wait> known_wait(pid_t tid, const BlockedCall& call);
    uint64_t waited_ms(pid_t tid, const std::optional<WaitWatch::Wait>& before) const;
    bool may_be_borrowed(pid_t tid, const user_regs_struct& regs);
    Result<bool> borrow(pid_t tid, const Resumption& wanted);
    Error give_up() const;
    bool had_late_signal() const;
    bool is_prepared(pid_t tid) const;
    bool write(uint64_t address, const void* data, size_t size) const {
        return pwrite(memory_file.get(), data, size, static_cast<off_t>(address)) ==
               static_cast<ssize_t>(size);
    }
    // Where the thread itself may write, too: through /proc/PID/mem guard pages can be written to.
    bool write_stack(uint64_t address, const void* data, size_t size) const {
        iovec local{const_cast<void*>(data), size};
        iovec remote{reinterpret_cast<void*>(address), size};
        if (process_vm_writev(pid, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(size))
            return true;
        // It does not grow the main thread's stack (6.5); the floor was checked.
        return write(address, data, size);
    }
};

Fire::Fire(std::unique_ptr<Plan> plan) : plan_(std::move(plan)) {}

Fire::~Fire() {
    restore();
}

std::optional<uint64_t> find_in_libc(const std::vector<RemoteModule>& modules,
                                     std::string_view name) {
    std::optional<uint64_t> found;
    for (const RemoteModule& module : modules) {
        if (!module.soname().starts_with("libc.so") &&
            !module.soname().starts_with("libpthread.so"))
            continue;
        if (std::optional<uint64_t> address = module.find(name)) found = address;
    }
    return found;
}

Result<std::unique_ptr<Fire>> Fire::prepare(pid_t pid, const std::vector<RemoteModule>& modules) {
    auto plan = std::make_unique<Plan>(pid, modules);
    for (auto [slot, name] :
         {std::pair{&plan->block.pthread_create, "pthread_create"},
          std::pair{&plan->block.pthread_attr_init, "pthread_attr_init"},
          std::pair{&plan->block.pthread_attr_setstacksize, "pthread_attr_setstacksize"},
          std::pair{&plan->block.munmap, "munmap"},
          std::pair{&plan->block.pthread_self, "pthread_self"},
          std::pair{&plan->block.pthread_detach, "pthread_detach"}}) {
        const std::optional<uint64_t> address = find_in_libc(modules, name);
        if (!address)
            return make_error(ErrorKind::kUnsupported,
                              fmt::format("process {} has no {} of glibc: it is linked statically, "
                                          "or against another C library",
                                          pid, name));
        *slot = *address;
    }
    plan->pid_fd = Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (!plan->pid_fd.valid()) return errno_error(fmt::format("process {}", pid), errno);
    plan->memory_file = Fd(::open(fmt::format("/proc/{}/mem", pid).c_str(), O_RDWR | O_CLOEXEC));
    if (!plan->memory_file.valid()) return process::access_error(pid, "open its memory", errno);
    // Only now, so that this memory is that of a process of ours, or of a program before.
    if (auto ours = process::require_ours({&pid, 1}); !ours) return std::move(ours).error();

    Bytes stub = stub_bytes();
    std::vector<std::byte> there(stub.size);
    for (const RemoteModule& module : modules) {
        for (const RemoteModule::Range& padding : module.code_padding()) {
            uint64_t start = (padding.start + 15) & ~uint64_t{15};
            if (start + stub.size > padding.end) continue;
            if (!plan->memory.read(start, there.data(), there.size())) continue;
            bool free = std::all_of(there.begin(), there.end(),
                                    [](std::byte byte) { return byte == std::byte{0}; });
            // Left by an injector that was killed: the same bytes, so they serve.
            bool ours = std::memcmp(there.data(), stub.data, stub.size) == 0;
            if (!free && !ours) continue;
            if (free && !plan->write(start, stub.data, stub.size))
                return process::access_error(pid, "write its memory", errno);
            plan->stub = start;
            plan->stub_is_there = true;
            plan->stub_was_there = ours;
            break;
        }
        if (plan->stub_is_there) break;
    }
    if (!plan->stub_is_there)
        return make_error(
            ErrorKind::kUnsupported,
            fmt::format("process {}: no text segment has {} free bytes behind it", pid, stub.size));
    Bytes payload = payload_bytes();
    plan->block.code_size = (payload.size + 7) & ~size_t{7};
    plan->block.all_signals = kAllSignals;
    plan->block.borrowed = borrowed_offset();
    plan->block.thread_entry = thread_offset();
    return std::unique_ptr<Fire>(new Fire(std::move(plan)));
}

// Redirects a thread that stands at a safe point: everything is written first, and the registers
// are set in one call, so a tracer that dies leaves a thread that either knows of nothing or needs
// nobody. False when the thread can't be used.
Result<bool> Fire::Plan::borrow(pid_t tid, const Resumption& wanted) {
    std::optional<ExtendedState> extended = read_extended_state(tid);
    if (!extended || extended->live_amx) return false;
    uint64_t signal_mask = 0;
    if (ptrace(PTRACE_GETSIGMASK, tid, 8, &signal_mask) != 0) return false;

    const user_regs_struct& regs = wanted.regs;
    const Image image = make_image(wanted, *extended, signal_mask, block);
    const std::optional<uint64_t> floor = space.stack_floor(memory, regs.rsp, regs.fs_base);
    if (!floor || image.start < *floor + kHandlerRoom) {
        doubts[tid] = floor
                          ? fmt::format("has {} bytes of stack left, and an attach needs {}",
                                        regs.rsp - *floor, regs.rsp - image.start + kHandlerRoom)
                          : "runs on a stack that is not the thread's own, whose end is not known";
        too_deep[tid] = regs.rsp;
        return false;
    }
    if (!write_stack(image.start, image.bytes.data(), image.bytes.size())) return false;
    user_regs_struct start = regs;
    start.rip = stub;
    start.rsp = image.entry;
    start.rdi = image.block;
    start.orig_rax = kAllSignals; // -1: no system call, nothing for the kernel to restart
    start.rax = 0;
    start.eflags &= ~static_cast<unsigned long long>(kFlagsToClear);
    if (ptrace(PTRACE_SETREGS, tid, nullptr, &start) != 0) return false;
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
bool Fire::Plan::may_be_borrowed(pid_t tid, const user_regs_struct& regs) {
    const std::optional<ThreadStatus> status = read_status(pid, tid);
    if (!status) return false;
    if (auto forbidden = seccomp_obstacle(pid, tid, status->seccomp)) {
        refused.insert(tid);
        if (!refusal) refusal = std::move(forbidden);
        return false;
    }
    if (static_cast<int64_t>(regs.orig_rax) >= 0 &&
        (status->pending_signals & ~status->blocked_signals) != 0)
        return false;
    if (was_interrupted(regs) &&
        judge_interruption(pid_fd.get(), call_of(regs)) == Interruption::kHarmful)
        return false;
    return safe_points.judge(regs) != Stand::kUnsafe &&
           !safe_points.has_signal_frame(regs.rsp, space.stack_end(regs.rsp));
}

Result<Fire::Plan::Look> Fire::Plan::look(pid_t tid, Clock::time_point deadline) {
    if (refused.contains(tid)) return Look::kUnsafe;
    const std::optional<BlockedCall> call = watch_for_call(pid, tid);
    const auto deep = too_deep.find(tid);
    if (call && deep != too_deep.end() && deep->second == call->stack_pointer)
        return Look::kUnsafe; // as deep as when it was last stopped
    std::optional<WaitWatch::Wait> wait;
    if (call && call->number >= 0) {
        const Interruption interruption = judge_interruption(pid_fd.get(), *call);
        if (interruption == Interruption::kHarmful) return Look::kUnsafe;
        if (interruption == Interruption::kRelativeTime) {
            wait = known_wait(tid, *call);
            if (!wait) return Look::kUnsafe;
        }
    }

    doubts.erase(tid); // not before: what waits for a CPU after a stop is as deep as it was
    Clock::time_point begin;
    switch (hold_thread(pid, tid, deadline, begin)) {
        case Hold::kHeld:
            break;
        case Hold::kGone:
            return Look::kGone;
        case Hold::kStuck:
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
    user_regs_struct regs = {};
    if (ptrace(PTRACE_GETREGS, tid, nullptr, &regs) != 0) {
        release();
        return Look::kGone;
    }
    std::optional<Resumption> possible = resumption_of(memory, regs, waited_ms(tid, wait));
    if (possible && may_be_borrowed(tid, regs)) {
        Result<bool> borrowed = borrow(tid, *possible);
        if (!borrowed || *borrowed) {
            release();
            if (!borrowed) return std::move(borrowed.error());
            return Look::kFired;
        }
    }
    if (possible && possible->released) ptrace(PTRACE_SETREGS, tid, nullptr, &*possible->released);
    release();
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

Result<FireReport> Fire::fire(Clock::time_point deadline) {
    Plan& plan = *plan_;
    plan.space = AddressSpace(plan.pid);
    plan.block.region = plan.space.choose_hole(kRegionSize);
    if (plan.block.region == 0)
        return make_error(ErrorKind::kUnsupported,
                          fmt::format("process {} has no free address space for {} bytes", plan.pid,
                                      kRegionSize));
    std::optional<Error> failure;
    on_tracer_thread([&] {
        // Blocked threads first: they are at rest, and whether they stand well is known already.
        // Each thread is looked at once at least, so that the reason can be told, but not for ever
        // where there are many that take their time.
        bool is_first = true;
        const Clock::time_point grace = std::max(deadline, Clock::now() + kFirstLook);
        for (nanoseconds pause = std::chrono::microseconds(300);; is_first = false) {
            std::vector<pid_t> threads = process::read_threads(plan.pid);
            if (threads.empty()) {
                failure = errno_error(fmt::format("process {}", plan.pid), ESRCH);
                return;
            }
            std::stable_partition(threads.begin(), threads.end(), [&](pid_t tid) {
                return read_blocked_call(plan.pid, tid).has_value();
            });
            bool over = false;
            for (pid_t tid : threads) {
                const Clock::time_point end =
                    is_first ? std::clamp(Clock::now() + kFirstStop, deadline, grace) : deadline;
                Result<Plan::Look> look = plan.look(tid, end);
                if (!look) {
                    failure = std::move(look.error());
                    return;
                }
                if (*look == Plan::Look::kFired) return;
                over = *look == Plan::Look::kStuck || Clock::now() > end;
                if (over) break;
            }
            const bool all_refused = std::all_of(threads.begin(), threads.end(), [&](pid_t tid) {
                return plan.refused.contains(tid);
            });
            if (over || all_refused || Clock::now() > deadline) {
                failure = plan.give_up();
                return;
            }
            sleep_for(pause);
            pause = std::min<nanoseconds>(pause + pause / 2, std::chrono::milliseconds(2));
            plan.space = AddressSpace(plan.pid);
        }
    });
    if (failure) return std::move(*failure);
    return plan.report;
}

void Fire::confirm_answer() {
    plan_->answered = true;
}

int Fire::borrowed_error() const {
    if (!plan_->fired) return 0;
    Block block{};
    if (!plan_->memory.read(plan_->block_at, &block, sizeof(block))) return 0;
    if (block.region != plan_->block.region || block.all_signals != kAllSignals) return 0;
    return block.error < 0 && block.error > -4096 ? static_cast<int>(-block.error) : 0;
}

// Whether no thread can be in the stub any more. When in doubt the stub stays: it is never entered
// by itself, and the next attach finds and uses it.
bool Fire::is_empty() const {
    const Plan& plan = *plan_;
    auto blocked_elsewhere = [&](pid_t tid) {
        std::optional<BlockedCall> call = read_blocked_call(plan.pid, tid);
        if (!call) return false;
        bool inside = call->program_counter >= plan.stub &&
                      call->program_counter < plan.stub + stub_bytes().size;
        // A handler that interrupted the stub goes back there.
        return !inside && !plan.safe_points.has_signal_frame(
                              call->stack_pointer, plan.space.stack_end(call->stack_pointer));
    };
    if (plan.stub_was_there) { // by an injector that was killed: which thread it borrowed is
                               // unknown
        std::vector<pid_t> threads = process::read_threads(plan.pid);
        if (!std::all_of(threads.begin(), threads.end(), blocked_elsewhere)) return false;
    }
    if (!plan.fired) return true;
    if (!plan.answered) return false;
    std::optional<ThreadStatus> thread = read_status(plan.pid, plan.report.borrowed);
    if (!thread) return true; // it has ended since
    // rt_sigreturn, which leaves the stub, sets the thread's own mask again.
    if (plan.resumption.mode == kResumeFrame && !may_be_in_stub(plan.mask) &&
        !may_be_in_stub(thread->blocked_signals))
        return true;
    return blocked_elsewhere(plan.report.borrowed);
}

bool Fire::restore() {
    Plan& plan = *plan_;
    if (!plan.stub_is_there) return true;
    if (!is_empty()) return false;
    std::vector<std::byte> zeros(stub_bytes().size);
    plan.write(plan.stub, zeros.data(), zeros.size());
    plan.stub_is_there = false;
    return true;
}

// Whether a handler interrupted the borrowed thread just before it issued its call again, by the
// frame that the kernel made for it over the image: its ucontext holds the stack pointer and,
// behind it, the address of the call.
bool Fire::Plan::had_late_signal() const {
    std::vector<uint64_t> words((image_end - image_at) / 8);
    if (!memory.read(image_at, words.data(), words.size() * 8)) return false;
    for (size_t i = kStackPointerWord; i + 1 < words.size(); ++i) {
        const bool is_ours = image_at + (i - kStackPointerWord) * 8 == frame_at;
        if (!is_ours && words[i] == resumption.regs.rsp && words[i + 1] == resumption.regs.rip)
            return true;
    }
    return false;
}

void Fire::heed_late_signal(bool restarts) {
    Plan& plan = *plan_;
    if (!plan.fired || plan.resumption.repeat == kRepeatNothing) return;
    if (plan.resumption.repeat == kRepeatUnlessSignal && restarts) return;
    const user_regs_struct& regs = plan.resumption.regs;
    const pid_t tid = plan.report.borrowed;
    auto waits_again = [&] {
        std::optional<BlockedCall> call = read_blocked_call(plan.pid, tid);
        return call && call->number == static_cast<long>(regs.rax) &&
               call->program_counter == regs.rip + kSyscallSize && call->stack_pointer == regs.rsp;
    };
    for (Clock::time_point end = Clock::now() + kBackTimeout; !waits_again();) {
        if (Clock::now() > end) return; // it has gone on
        sleep_for(std::chrono::microseconds(50));
    }
    if (!plan.had_late_signal()) return;
    on_tracer_thread([&] {
        Clock::time_point since;
        if (hold_thread(plan.pid, tid, Clock::now() + kBackTimeout, since) != Hold::kHeld) return;
        user_regs_struct now = {};
        if (ptrace(PTRACE_GETREGS, tid, nullptr, &now) == 0 && now.orig_rax == regs.rax &&
            now.rip == regs.rip + kSyscallSize && now.rsp == regs.rsp && was_interrupted(now)) {
            now.orig_rax = kAllSignals;
            now.rax = static_cast<uint64_t>(-EINTR);
            ptrace(PTRACE_SETREGS, tid, nullptr, &now);
        }
        release_thread(tid);
    });
}

} // namespace speedbump::inject
