// SPDX-License-Identifier: MIT
#include "inject/fire.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include "inject/fire_plan.h"
#include "inject/hold.h"
#include "inject/process_state.h"
#include "inject/write_code.h"
#include "process/memory.h"
#include "process/ownership.h"
#include "process/threads.h"

namespace speedbump::inject {
namespace {

using process::RemoteModule;

constexpr uint64_t kUncatchable = (1ULL << (SIGKILL - 1)) | (1ULL << (SIGSTOP - 1));
// glibc's own, which the first pthread_create() of a process lets through (late_init(), 2.34).
constexpr uint64_t kGlibcSignals = (1ULL << (32 - 1)) | (1ULL << (33 - 1));
// How long a borrowed thread may take from its answer to the call that it issues again.
constexpr std::chrono::milliseconds kBackTimeout{5};
// A thread gets at least so long to come to its first stop, whatever was spent on looking at the
// process: one that has to wait for a CPU may take its time.
constexpr std::chrono::milliseconds kFirstStop{250};
constexpr std::chrono::milliseconds kFirstLook = 8 * kFirstStop; // all threads together
// For which this thread, that goes before all others of its CPU, lets them run before it looks at
// one.
constexpr std::chrono::microseconds kLetRun{100};

// Whether a thread with this signal mask may be in the stub, where all signals are blocked.
bool may_be_in_stub(uint64_t mask) {
    return (mask | kUncatchable | kGlibcSignals) == kAllSignals;
}

} // namespace

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

std::optional<uint64_t> find_stub_place(
    const process::RemoteMemory& memory, const std::vector<RemoteModule>& modules,
    const std::function<bool(const std::vector<std::byte>& there)>& fits) {
    std::vector<std::byte> there(stub_bytes().size);
    for (const RemoteModule& module : modules)
        for (const RemoteModule::Range& padding : module.code_padding()) {
            const uint64_t start = (padding.start + 15) & ~uint64_t{15};
            if (start + there.size() <= padding.end &&
                memory.read(start, there.data(), there.size()) && fits(there))
                return start;
        }
    return std::nullopt;
}

bool is_stub(const std::vector<std::byte>& there) {
    return std::memcmp(there.data(), stub_bytes().data, stub_bytes().size) == 0;
}

Fire::Fire(std::unique_ptr<Plan> plan) : plan_(std::move(plan)) {}

Fire::~Fire() {
    restore();
}

Result<std::unique_ptr<Fire>> Fire::prepare(pid_t pid, const std::vector<RemoteModule>& modules,
                                            const Errand& errand) {
    auto plan = std::make_unique<Plan>(pid, modules);
    plan->calls = errand.calls;
    for (auto [slot, name] :
         {std::pair{&plan->block.pthread_create, "pthread_create"},
          std::pair{&plan->block.pthread_attr_init, "pthread_attr_init"},
          std::pair{&plan->block.pthread_attr_setstacksize, "pthread_attr_setstacksize"},
          std::pair{&plan->block.munmap, "munmap"},
          std::pair{&plan->block.pthread_self, "pthread_self"},
          std::pair{&plan->block.pthread_detach, "pthread_detach"},
          std::pair{&plan->block.errno_location, "__errno_location"}}) {
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
    auto opened = process::open_memory(pid);
    if (!opened) return std::move(opened).error();
    plan->memory_file = std::move(*opened);
    // Only now, so that this memory is that of a process of ours, or of a program before.
    if (auto ours = process::require_ours({&pid, 1}); !ours) return std::move(ours).error();

    const Bytes stub = stub_bytes();
    bool is_free = false; // else the same bytes are there, so they serve
    const auto place = find_stub_place(plan->memory, modules, [&](const auto& there) {
        is_free = std::all_of(there.begin(), there.end(),
                              [](std::byte byte) { return byte == std::byte{0}; });
        return is_free || is_stub(there);
    });
    if (place) {
        if (is_free)
            if (auto written = write_code(pid, plan->memory_file, *place, stub.data, stub.size);
                !written)
                return std::move(written).error();
        plan->stub = *place;
        plan->stub_is_there = true;
        plan->stub_was_there = !is_free;
    }
    if (!plan->stub_is_there)
        return make_error(
            ErrorKind::kUnsupported,
            fmt::format("process {}: no text segment has {} free bytes after it", pid, stub.size));
    Bytes payload = payload_bytes();
    plan->block.code_size = (payload.size + 7) & ~size_t{7};
    plan->block.all_signals = kAllSignals;
    plan->block.borrowed = borrowed_offset();
    plan->block.thread_entry = errand.entry;
    return std::unique_ptr<Fire>(new Fire(std::move(plan)));
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
            std::vector<pid_t> threads = threads_of_program(plan.pid);
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
            sleep_about(pause);
            pause = std::min<nanoseconds>(pause + pause / 2, std::chrono::milliseconds(2));
            plan.space = AddressSpace(plan.pid);
            // A thread that woke on this CPU meanwhile had to wait, in the midst of its call.
            sleep_about(kLetRun);
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
        std::vector<pid_t> threads = threads_of_program(plan.pid);
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
    const auto written =
        write_code(plan.pid, plan.memory_file, plan.stub, zeros.data(), zeros.size());
    plan.stub_is_there = !written && written.error().error_number != ESRCH; // it has ended
    return !plan.stub_is_there;
}

void Fire::heed_late_signal(bool restarts) {
    Plan& plan = *plan_;
    if (!plan.fired || plan.resumption.repeat == kRepeatNothing) return;
    if (plan.resumption.repeat == kRepeatUnlessSignal && restarts) return;
    const Resumption& resumption = plan.resumption;
    const pid_t tid = plan.report.borrowed;
    auto waits_again = [&] {
        std::optional<BlockedCall> call = read_blocked_call(plan.pid, tid);
        return call && call->number == resumption.number &&
               call->program_counter == program_counter_of(resumption.regs) + kCallSize &&
               call->stack_pointer == stack_pointer_of(resumption.regs);
    };
    const auto before = process::read_thread_times(plan.pid, tid);
    for (Clock::time_point end = Clock::now() + kBackTimeout; !waits_again();) {
        // It has gone on once it has had a CPU for so long, or sleeps elsewhere.
        const auto now = process::read_thread_times(plan.pid, tid);
        const bool has_run = !before || !now || now->ran - before->ran > kBackTimeout;
        if (Clock::now() > end && (has_run || is_given_up(plan.pid, tid, end))) return;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (!plan.had_late_signal()) return;
    on_tracer_thread([&] {
        Clock::time_point since;
        if (hold_thread(plan.pid, tid, Clock::now() + kBackTimeout, since) != Hold::kHeld) return;
        fail_call(tid, resumption);
        release_thread(tid);
    });
}

} // namespace speedbump::inject
