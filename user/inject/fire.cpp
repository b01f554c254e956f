// SPDX-License-Identifier: MIT
#include "inject/fire.h"

#include <cpuid.h>
#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "inject/payload.h"
#include "inject/process_state.h"
#include "inject/safe_point.h"
#include "process/threads.h"

namespace speedbump::inject {
namespace {

using process::RemoteMemory;
using process::RemoteModule;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kRedZone = 128;
constexpr uint64_t kXsaveAlign = 64;
constexpr uint64_t kAmxFeatures = 3ULL << 17; // XTILECFG, XTILEDATA
constexpr size_t kLegacyXsave = 512;
constexpr size_t kXsaveHeader = 64;
constexpr size_t kSoftwareBytes = 464; // in the legacy area: struct _fpx_sw_bytes
constexpr uint32_t kXstateMagic1 = 0x46505853;
constexpr uint32_t kXstateMagic2 = 0x46505845;
constexpr uint64_t kAllSignals = ~uint64_t{0};
constexpr uint64_t kUncatchable = (1ULL << (SIGKILL - 1)) | (1ULL << (SIGSTOP - 1));
constexpr uint64_t kSyscallSize = 2; // bytes of the instruction
// How long a borrowed thread may take from its answer to the call that it issues again.
constexpr std::chrono::milliseconds kBackTimeout{5};
constexpr uint64_t kFlagsToClear = 0x100 | 0x400 | 0x40000; // TF, DF, AC

// The kernel's struct ucontext of x86-64 as 64-bit words.
constexpr size_t kContextWords = 38;
enum ContextWord : size_t {
    kFlags = 0,
    kStackFlags = 3,
    kR8 = 5,
    kSelectors = 23,
    kFpState = 28,
    kSignalMask = 37,
};
constexpr uint64_t kContextFlags = 1 | 2 | 4; // UC_FP_XSTATE, UC_SIGCONTEXT_SS, STRICT_RESTORE_SS

struct AddressRange {
    uint64_t start = 0;
    uint64_t end = 0;
};

// All mappings of a process, the anonymous ones too.
std::vector<AddressRange> read_ranges(pid_t pid) {
    std::vector<AddressRange> ranges;
    std::string text = read_proc(fmt::format("/proc/{}/maps", pid));
    for (size_t at = 0; at < text.size();) {
        unsigned long start = 0;
        unsigned long end = 0;
        if (std::sscanf(text.c_str() + at, "%lx-%lx", &start, &end) == 2)
            ranges.push_back({start, end});
        at = std::min(text.find('\n', at), text.size() - 1) + 1;
    }
    return ranges;
}

// An address in the middle of the largest hole, where neither the heap nor a mapping grows to.
uint64_t choose_address(const std::vector<AddressRange>& ranges) {
    constexpr uint64_t kUserEnd = 0x7fff00000000;
    uint64_t best_start = 0;
    uint64_t best_size = 0;
    uint64_t previous = 0x10000;
    for (const AddressRange& range : ranges) {
        if (range.start >= kUserEnd) break;
        if (range.start > previous && range.start - previous > best_size) {
            best_start = previous;
            best_size = range.start - previous;
        }
        previous = std::max(previous, range.end);
    }
    if (best_size < 16 * kRegionSize) return 0;
    static thread_local std::mt19937_64 random{std::random_device{}()};
    uint64_t offset = best_size / 4 + random() % (best_size / 2);
    return (best_start + offset) & ~uint64_t{0xfff};
}

// The extended state of a stopped thread, ready for a signal frame.
struct ExtendedState {
    std::vector<std::byte> bytes; // with the second magic behind it
    bool live_amx = false;
};

size_t frame_size_of(uint64_t features) {
    size_t size = kLegacyXsave + kXsaveHeader;
    for (unsigned i = 2; i < 63; ++i) {
        if (!(features >> i & 1)) continue;
        unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
        __cpuid_count(0xd, i, eax, ebx, ecx, edx);
        if (!(ecx & 1)) size = std::max<size_t>(size, size_t{ebx} + eax);
    }
    return size;
}

std::optional<ExtendedState> read_extended_state(pid_t tid) {
    ExtendedState state;
    state.bytes.resize(16384);
    iovec buffer{state.bytes.data(), state.bytes.size()};
    if (ptrace(PTRACE_GETREGSET, tid, NT_X86_XSTATE, &buffer) != 0) return std::nullopt;
    if (buffer.iov_len < kLegacyXsave + kXsaveHeader) return std::nullopt;
    uint64_t enabled = 0; // XCR0: the kernel puts it where the frame has the software bytes
    uint64_t in_use = 0;
    std::memcpy(&enabled, state.bytes.data() + kSoftwareBytes, 8);
    std::memcpy(&in_use, state.bytes.data() + kLegacyXsave, 8);
    // A frame that claims more than the task's own size is restored without AVX: leave out AMX,
    // which a task has only on request (arch_prctl, 5.16).
    state.live_amx = (in_use & kAmxFeatures) != 0;
    uint64_t features = enabled & ~kAmxFeatures;
    size_t size = std::min(frame_size_of(features), buffer.iov_len);
    state.bytes.resize(size + 4);
    struct {
        uint32_t magic1, extended_size;
        uint64_t features;
        uint32_t state_size, padding[7];
    } software = {
        kXstateMagic1, static_cast<uint32_t>(size + 4), features, static_cast<uint32_t>(size), {}};
    static_assert(sizeof(software) == 48);
    std::memcpy(state.bytes.data() + kSoftwareBytes, &software, sizeof(software));
    std::memcpy(state.bytes.data() + size, &kXstateMagic2, 4);
    return state;
}

void sleep_for(nanoseconds duration) {
    std::this_thread::sleep_for(duration);
}

// What became of the wish to stop a thread.
enum class Hold {
    kHeld,
    kStoppedBySignal, // SIGSTOP and its like, before us; it is released again
    kGone,
    kStuck,   // it did not stop in time; only the end of the calling thread gives it back
    kRefused, // by the kernel
};

// The kernel refuses a thread that has ended, but is still listed, with EPERM (ptrace_attach()).
bool has_ended(pid_t pid, pid_t tid) {
    const std::optional<ThreadStatus> status = read_status(pid, tid);
    return !status || status->state == 'Z' || status->state == 'X';
}

void release_thread(pid_t tid) {
    ptrace(PTRACE_DETACH, tid, nullptr, 0L);
}

// Stops one thread by ptrace. `since`: from when on it may have stood still.
Hold hold_thread(pid_t pid, pid_t tid, Clock::time_point deadline, Clock::time_point& since) {
    if (ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) != 0)
        return errno == ESRCH || has_ended(pid, tid) ? Hold::kGone : Hold::kRefused;
    since = Clock::now();
    if (ptrace(PTRACE_INTERRUPT, tid, nullptr, nullptr) != 0) {
        release_thread(tid);
        return Hold::kGone;
    }
    for (nanoseconds pause{5000};;) {
        Clock::time_point asked = Clock::now();
        // Stops only: the end of a child of ours is for whoever started it.
        siginfo_t info{};
        if (waitid(P_PID, static_cast<id_t>(tid), &info, WSTOPPED | __WALL | WNOHANG) != 0 &&
            errno != EINTR)
            return Hold::kGone;
        if (info.si_pid == 0) {
            std::optional<ThreadStatus> thread = read_status(pid, tid);
            if (!thread || thread->state == 'Z' || thread->state == 'X') return Hold::kGone;
            // Uninterruptible, or waiting for a CPU. Seizing it anew would change nothing.
            since = asked; // it is not held yet
            if (asked > deadline) return Hold::kStuck;
            sleep_for(pause);
            pause = std::min<nanoseconds>(pause + pause / 2, std::chrono::microseconds(100));
            continue;
        }
        const int signal = info.si_status & 0xff; // the event is above it
        if (info.si_status >> 8 == PTRACE_EVENT_STOP) {
            if (signal == SIGTRAP) return Hold::kHeld;
            release_thread(tid);
            return Hold::kStoppedBySignal;
        }
        // A signal was on its way: let it be delivered, the interrupt follows.
        if (ptrace(PTRACE_CONT, tid, nullptr, static_cast<long>(signal)) != 0) return Hold::kGone;
    }
}

// Runs `work` on a thread of its own with real-time priority where that is allowed: a stop is as
// long as we take to end it.
template <typename Work>
void on_tracer_thread(Work work) {
    pid_t id = 0;
    std::thread tracer([&] {
        sched_param parameter{};
        parameter.sched_priority = 1;
        sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &parameter);
        prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
        id = static_cast<pid_t>(syscall(SYS_gettid));
        work();
    });
    tracer.join();
    // The kernel ends what it still traced some time after join() returns.
    const std::string place = fmt::format("/proc/self/task/{}", id);
    while (access(place.c_str(), F_OK) == 0) sleep_for(std::chrono::microseconds(100));
}

// The scheduler's clock of a CPU now, in milliseconds: when we ourselves last ran there. Moves the
// calling thread for a moment.
std::optional<double> scheduler_clock(int cpu) {
    cpu_set_t all;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(cpu), &one);
    if (sched_getaffinity(0, sizeof(all), &all) != 0) return std::nullopt;
    if (sched_setaffinity(0, sizeof(one), &one) != 0) return std::nullopt;
    sleep_for(nanoseconds(1)); // an entry is brought up to date when its thread begins to run
    std::optional<LastRun> own = read_last_run(getpid(), gettid());
    sched_setaffinity(0, sizeof(all), &all);
    if (!own || own->cpu != cpu) return std::nullopt;
    return own->milliseconds;
}

} // namespace

struct Fire::Plan {
    pid_t pid = 0;
    RemoteMemory memory{0};
    SafePoints safe_points;
    std::vector<AddressRange> ranges;
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
        : pid(target), memory(target), safe_points(RemoteMemory(target), modules) {}

    enum class Look { kFired, kUnsafe, kGone, kStuck };
    Result<Look> look(pid_t tid, Clock::time_point deadline);
    Result<bool> borrow(pid_t tid, const Resumption& wanted);
    bool had_late_signal() const;
    bool write(uint64_t address, const void* data, size_t size) const {
        return pwrite(memory_file.get(), data, size, static_cast<off_t>(address)) ==
               static_cast<ssize_t>(size);
    }
    uint64_t stack_end(uint64_t address) const {
        for (const AddressRange& range : ranges)
            if (address >= range.start && address < range.end) return range.end;
        return address + (256 << 10); // mapped since: the rest of a new thread's stack
    }
};

Fire::Fire(std::unique_ptr<Plan> plan) : plan_(std::move(plan)) {}

Fire::~Fire() {
    restore();
}

Result<std::unique_ptr<Fire>> Fire::prepare(pid_t pid, const std::vector<RemoteModule>& modules) {
    auto plan = std::make_unique<Plan>(pid, modules);
    for (auto [slot, name] : {std::pair{&plan->block.pthread_create, "pthread_create"},
                              std::pair{&plan->block.munmap, "munmap"},
                              std::pair{&plan->block.pthread_self, "pthread_self"},
                              std::pair{&plan->block.pthread_detach, "pthread_detach"}}) {
        for (const RemoteModule& module : modules) {
            if (!module.soname().starts_with("libc.so") &&
                !module.soname().starts_with("libpthread.so"))
                continue;
            if (std::optional<uint64_t> address = module.find(name)) *slot = *address;
        }
        if (*slot == 0)
            return make_error(ErrorKind::kUnsupported,
                              fmt::format("process {} has no {} of glibc: it is linked statically, "
                                          "or against another C library",
                                          pid, name));
    }
    plan->memory_file = Fd(::open(fmt::format("/proc/{}/mem", pid).c_str(), O_RDWR | O_CLOEXEC));
    if (!plan->memory_file.valid()) return process::access_error(pid, "open its memory", errno);

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
    Bytes payload = payload_bytes();
    uint64_t top = (regs.rsp - kRedZone) & ~(kXsaveAlign - 1);
    uint64_t code = top - block.code_size;
    uint64_t fp_state = (code - extended->bytes.size()) & ~(kXsaveAlign - 1);
    uint64_t context = (fp_state - kContextWords * 8) & ~uint64_t{15};
    block_at = (context - sizeof(Block)) & ~uint64_t{15};
    uint64_t entry = block_at - 16;
    uint64_t canary_size = (extended->bytes.size() + 2048) & ~uint64_t{15};
    uint64_t canary = entry - kRedZone - canary_size;
    std::vector<std::byte> image(top - canary);
    auto place = [&](uint64_t address, const void* data, size_t size) {
        std::memcpy(image.data() + (address - canary), data, size);
    };
    for (uint64_t at = canary; at < entry - kRedZone; at += 8) place(at, &kCanary, 8);
    place(code, payload.data, payload.size);
    place(fp_state, extended->bytes.data(), extended->bytes.size());

    uint64_t words[kContextWords] = {};
    words[kFlags] = kContextFlags;
    words[kStackFlags] = 2; // SS_DISABLE until the thread itself has filled it in
    const uint64_t general[] = {regs.r8,  regs.r9,  regs.r10, regs.r11, regs.r12, regs.r13,
                                regs.r14, regs.r15, regs.rdi, regs.rsi, regs.rbp, regs.rbx,
                                regs.rdx, regs.rax, regs.rcx, regs.rsp, regs.rip, regs.eflags};
    std::copy(std::begin(general), std::end(general), words + kR8);
    words[kSelectors] = (regs.cs & 0xffff) | (regs.ss & 0xffff) << 48;
    words[kFpState] = fp_state;
    words[kSignalMask] = signal_mask;
    place(context, words, sizeof(words));

    Block full = block;
    full.code = code;
    full.frame = context;
    full.mode = wanted.mode;
    full.extended_state = fp_state;
    full.canary = canary;
    full.canary_words = canary_size / 8;
    full.repeats_call = wanted.repeat;
    place(block_at, &full, sizeof(full));

    // /proc/PID/mem also grows the main thread's stack, which process_vm_writev does not (6.5).
    if (!write(canary, image.data(), image.size())) return false;
    user_regs_struct start = regs;
    start.rip = stub;
    start.rsp = entry;
    start.rdi = block_at;
    start.orig_rax = kAllSignals; // -1: no system call, nothing for the kernel to restart
    start.rax = 0;
    start.eflags &= ~static_cast<unsigned long long>(kFlagsToClear);
    if (ptrace(PTRACE_SETREGS, tid, nullptr, &start) != 0) return false;
    fired = true;
    resumption = wanted;
    mask = signal_mask;
    frame_at = context;
    image_at = canary;
    image_end = top;
    report.borrowed = tid;
    report.region = block.region;
    return true;
}

Result<Fire::Plan::Look> Fire::Plan::look(pid_t tid, Clock::time_point deadline) {
    std::optional<BlockedCall> call = read_blocked_call(pid, tid);
    if (call && call->number >= 0 && !SafePoints::blocks_safely(call->number, call->arguments[1]))
        return Look::kUnsafe;
    // Time already waited in a call with a relative time-out that the stop will make fail: the
    // thread last ran when the call went to sleep.
    std::optional<LastRun> before;
    double now_ms = 0;
    Clock::time_point now{};
    if (call && (call->number == SYS_epoll_wait || call->number == SYS_epoll_pwait) &&
        static_cast<int32_t>(call->arguments[3]) > 0) {
        before = read_last_run(pid, tid);
        std::optional<double> clock = before ? scheduler_clock(before->cpu) : std::nullopt;
        now = Clock::now();
        now_ms = clock.value_or(0);
        if (!clock) before.reset();
    }

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

    user_regs_struct regs = {};
    if (ptrace(PTRACE_GETREGS, tid, nullptr, &regs) != 0) {
        release();
        return Look::kGone;
    }
    uint64_t waited_ms = 0;
    if (before) {
        std::optional<LastRun> after = read_last_run(pid, tid);
        // Once: into the stop. More often: it had woken in between.
        if (after && after->switches <= before->switches + 1 && now_ms > before->milliseconds)
            waited_ms = static_cast<uint64_t>(
                0.5 + now_ms - before->milliseconds +
                std::chrono::duration<double, std::milli>(Clock::now() - now).count());
    }
    bool signal_waits = false;
    if (static_cast<int64_t>(regs.orig_rax) >= 0) {
        std::optional<ThreadStatus> thread = read_status(pid, tid);
        signal_waits = !thread || (thread->pending_signals & ~thread->blocked_signals) != 0;
    }
    std::optional<Resumption> possible = resumption_of(memory, regs, waited_ms);
    if (possible && !signal_waits && safe_points.judge(regs) != Stand::kUnsafe &&
        !safe_points.has_signal_frame(regs.rsp, stack_end(regs.rsp))) {
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

Result<FireReport> Fire::fire(Clock::time_point deadline) {
    Plan& plan = *plan_;
    plan.ranges = read_ranges(plan.pid);
    plan.block.region = choose_address(plan.ranges);
    if (plan.block.region == 0)
        return make_error(ErrorKind::kUnsupported, fmt::format("process {} has no free address "
                                                               "space",
                                                               plan.pid));
    std::optional<Error> failure;
    on_tracer_thread([&] {
        // Blocked threads first: they are at rest, and whether they stand well is known already.
        for (nanoseconds pause = std::chrono::microseconds(300);;) {
            std::vector<pid_t> blocked;
            std::vector<pid_t> running;
            for (pid_t tid : process::read_threads(plan.pid)) {
                std::optional<BlockedCall> call = read_blocked_call(plan.pid, tid);
                (call ? blocked : running).push_back(tid);
            }
            if (blocked.empty() && running.empty()) {
                failure = errno_error(fmt::format("process {}", plan.pid), ESRCH);
                return;
            }
            blocked.insert(blocked.end(), running.begin(), running.end());
            bool stuck = false;
            for (pid_t tid : blocked) {
                Result<Plan::Look> look = plan.look(tid, deadline);
                if (!look) {
                    failure = std::move(look.error());
                    return;
                }
                if (*look == Plan::Look::kFired) return;
                stuck = stuck || *look == Plan::Look::kStuck;
                if (stuck || Clock::now() > deadline) break;
            }
            if (stuck || Clock::now() > deadline) {
                failure = obstacle(plan.pid);
                if (!failure) failure = uninterruptible(plan.pid);
                if (!failure)
                    failure = make_error(
                        ErrorKind::kTimeout,
                        fmt::format("process {}: in {} looks no thread stood where it could be "
                                    "interrupted safely",
                                    plan.pid, plan.report.looks));
                return;
            }
            sleep_for(pause);
            pause = std::min<nanoseconds>(pause + pause / 2, std::chrono::milliseconds(2));
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
        return !inside && !plan.safe_points.has_signal_frame(call->stack_pointer,
                                                             plan.stack_end(call->stack_pointer));
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
    // All signals are blocked in the stub, and rt_sigreturn, which leaves it, unblocks them.
    if (plan.resumption.mode == kResumeFrame && (plan.mask | kUncatchable) != kAllSignals &&
        (thread->blocked_signals | kUncatchable) != kAllSignals)
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
    constexpr size_t kWordOfStackPointer = kR8 + 15;
    std::vector<uint64_t> words((image_end - image_at) / 8);
    if (!memory.read(image_at, words.data(), words.size() * 8)) return false;
    for (size_t i = kWordOfStackPointer; i + 1 < words.size(); ++i) {
        const bool is_ours = image_at + (i - kWordOfStackPointer) * 8 == frame_at;
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
