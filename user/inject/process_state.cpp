// SPDX-License-Identifier: MIT
#include "inject/process_state.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string_view>
#include <thread>

#include "inject/machine.h"
#include "process/threads.h"
#include "util/proc.h"

namespace speedbump::inject {
namespace {

// A thread that runs is looked at this often before it is stopped: one that only shows up between
// two waits might be just about to wait.
constexpr int kLooksAtRunning = 3;
constexpr std::chrono::microseconds kBetweenLooks{50};

// In which the kernel adds to the time that a thread with a CPU has run: a tick, at 100 of them.
constexpr int kTickMs = 10;

constexpr std::chrono::seconds kForACpu{10};

uint64_t number(std::string_view text, int base) {
    return std::strtoull(std::string(text).c_str(), nullptr, base);
}

std::string command_of(pid_t pid) {
    std::string name = read_proc(fmt::format("/proc/{}/comm", pid));
    while (!name.empty() && name.back() == '\n') name.pop_back();
    return name;
}

// To root and whoever else has CAP_SYS_ADMIN.
bool shows_kernel_stacks() {
    static const bool shows = !read_proc("/proc/self/stack").empty();
    return shows;
}

// Whether a thread gets on: one that waits for a CPU does not.
bool runs_on(pid_t pid, pid_t tid) {
    const auto run_time = [&] {
        const auto times = process::read_thread_times(pid, tid);
        return times ? times->ran : std::chrono::nanoseconds(0);
    };
    const std::chrono::nanoseconds before = run_time();
    for (int ms = 0; ms <= kTickMs; ++ms) {
        if (run_time() != before) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
}

} // namespace

std::optional<ThreadStatus> read_status(pid_t pid, pid_t tid) {
    std::string text = read_proc(fmt::format("/proc/{}/task/{}/status", pid, tid));
    if (text.empty()) return std::nullopt;
    ThreadStatus status;
    std::string_view state = status_field(text, "State");
    size_t at = state.find_first_not_of("\t ");
    if (at != std::string_view::npos) status.state = state[at];
    status.parent = static_cast<pid_t>(number(status_field(text, "PPid"), 10));
    status.tracer = static_cast<pid_t>(number(status_field(text, "TracerPid"), 10));
    status.blocked_signals = number(status_field(text, "SigBlk"), 16);
    status.pending_signals =
        number(status_field(text, "SigPnd"), 16) | number(status_field(text, "ShdPnd"), 16);
    status.ignored_signals = number(status_field(text, "SigIgn"), 16);
    status.shadow_stack =
        status_field(text, "x86_Thread_features").find("shstk") != std::string_view::npos;
    status.seccomp = static_cast<int>(number(status_field(text, "Seccomp"), 10));
    status.switches = number(status_field(text, "voluntary_ctxt_switches"), 10);
    return status;
}

bool is_kernel_worker(pid_t pid, pid_t tid) {
    constexpr int kFlags = 9;
    // PF_IO_WORKER and PF_USER_WORKER. Before 5.12 and 6.4 these bits mean something else.
    constexpr uint64_t kWorker = 0x10 | 0x4000;
    const auto stat = read_stat(fmt::format("/proc/{}/task/{}/stat", pid, tid));
    return stat && (stat->field(kFlags) & kWorker) != 0 &&
           (stat->name.starts_with("iou-") || stat->name.starts_with("vhost-"));
}

std::vector<pid_t> threads_of_program(pid_t pid) {
    std::vector<pid_t> threads = process::read_threads(pid);
    std::erase_if(threads, [pid](pid_t tid) { return is_kernel_worker(pid, tid); });
    return threads;
}

pid_t thread_named(pid_t pid, pid_t number) {
    for (const pid_t tid : process::read_threads(pid)) {
        const std::string text = read_proc(fmt::format("/proc/{}/task/{}/status", pid, tid));
        const std::string_view names = status_field(text, "NSpid"); // outermost first
        const size_t last = names.find_last_of(" \t") + 1;          // 0: there is one only
        if (std::atoi(std::string(names.substr(last)).c_str()) == number) return tid;
    }
    return 0;
}

bool lacks_a_cpu(pid_t pid, pid_t tid) {
    const std::optional<ThreadStatus> status = read_status(pid, tid);
    return status && status->state == 'R';
}

bool is_given_up(pid_t pid, std::optional<pid_t> tid,
                 std::chrono::steady_clock::time_point deadline) {
    const auto now = std::chrono::steady_clock::now();
    if (now <= deadline) return false;
    return now > deadline + kForACpu || (tid && !lacks_a_cpu(pid, *tid));
}

std::optional<BlockedCall> read_blocked_call(pid_t pid, pid_t tid) {
    std::string text = read_proc(fmt::format("/proc/{}/task/{}/syscall", pid, tid));
    BlockedCall call;
    unsigned long arguments[6] = {};
    unsigned long stack_pointer = 0;
    unsigned long program_counter = 0;
    int fields = std::sscanf(text.c_str(), "%ld %lx %lx %lx %lx %lx %lx %lx %lx", &call.number,
                             &arguments[0], &arguments[1], &arguments[2], &arguments[3],
                             &arguments[4], &arguments[5], &stack_pointer, &program_counter);
    if (fields == 3 && call.number == -1) { // "-1 SP PC"
        call.stack_pointer = arguments[0];
        call.program_counter = arguments[1];
        return call;
    }
    if (fields != 9) return std::nullopt;
    std::copy(std::begin(arguments), std::end(arguments), call.arguments);
    call.stack_pointer = stack_pointer;
    call.program_counter = program_counter;
    return call;
}

std::optional<BlockedCall> watch_for_call(pid_t pid, pid_t tid) {
    BlockedCall unknown;
    unknown.number = kUnknownCall;
    if (!shows_kernel_stacks()) {
        if (std::optional<BlockedCall> call = read_blocked_call(pid, tid)) return call;
        if (!runs_on(pid, tid)) return unknown;
    }
    const std::string stack = fmt::format("/proc/{}/task/{}/stack", pid, tid);
    for (int look = 0;;) {
        if (std::optional<BlockedCall> call = read_blocked_call(pid, tid)) return call;
        if (const CallOnStack on_stack = call_on_stack(read_proc(stack));
            on_stack.state == CallOnStack::State::kInside) {
            BlockedCall call = unknown;
            if (on_stack.number >= 0) call.number = on_stack.number;
            return call;
        }
        if (++look == kLooksAtRunning) return std::nullopt;
        std::this_thread::sleep_for(kBetweenLooks);
    }
}

std::optional<uint64_t> read_start_ticks(pid_t pid) {
    constexpr int kStartTime = 22;
    const auto stat = read_stat(fmt::format("/proc/{}/stat", pid));
    if (!stat) return std::nullopt;
    return stat->field(kStartTime);
}

std::optional<std::chrono::milliseconds> read_age(pid_t pid) {
    const std::optional<uint64_t> ticks = read_start_ticks(pid);
    if (!ticks) return std::nullopt;
    timespec now = {};
    clock_gettime(CLOCK_BOOTTIME, &now);
    int64_t now_ms = int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
    auto start_ms = static_cast<int64_t>(*ticks) * 1000 / sysconf(_SC_CLK_TCK);
    return std::chrono::milliseconds(now_ms - start_ms);
}

std::optional<LastRun> read_last_run(pid_t pid, pid_t tid) {
    std::string text = read_proc(fmt::format("/proc/{}/task/{}/sched", pid, tid));
    auto value = [&](std::string_view name) {
        const size_t start = text.find(fmt::format("\n{} ", name));
        if (start == std::string::npos) return std::string();
        const size_t colon = text.find(':', start), end = text.find('\n', start + 1);
        return colon < end ? text.substr(colon + 1, end - colon - 1) : std::string();
    };
    std::string run = value("se.exec_start");
    std::string switches = value("nr_voluntary_switches");
    if (run.empty() || switches.empty()) return std::nullopt;
    constexpr int kProcessor = 39;
    const auto stat = read_stat(fmt::format("/proc/{}/task/{}/stat", pid, tid));
    if (!stat) return std::nullopt;
    // 0 since it was moved: migrate_task_rq_fair().
    return LastRun{std::strtod(run.c_str(), nullptr), number(switches, 10),
                   static_cast<int>(stat->field(kProcessor))};
}

std::optional<Error> obstacle(pid_t pid) {
    std::optional<ThreadStatus> status = read_status(pid, pid);
    std::string who = fmt::format("process {} ({})", pid, command_of(pid));
    if (!status) return errno_error(fmt::format("process {}", pid), ESRCH);
    std::vector<pid_t> threads = process::read_threads(pid);
    if (status->state == 'Z' && threads.size() <= 1)
        return make_error(ErrorKind::kNotFound, who +
                                                    " is a zombie: it has ended, and its parent "
                                                    "has not asked for its status yet");
    for (pid_t tid : threads) {
        std::optional<ThreadStatus> thread = read_status(pid, tid);
        if (!thread) continue;
        const std::string own_thread = fmt::format("/proc/self/task/{}", thread->tracer);
        if (thread->tracer != 0 && access(own_thread.c_str(), F_OK) != 0)
            return make_error(ErrorKind::kPermission,
                              fmt::format("{} is traced by process {} ({})", who, thread->tracer,
                                          command_of(thread->tracer)))
                .with_hint("a process has one tracer at a time: end the debugger or strace first");
        if (thread->state == 'T')
            return make_error(ErrorKind::kIo, who + " is stopped by a signal")
                .with_hint(fmt::format("let it go on first: kill -CONT {}", pid));
        if (thread->shadow_stack)
            return make_error(ErrorKind::kUnsupported,
                              who + " runs with a user shadow stack, which attaching can't handle");
    }
    return std::nullopt;
}

std::optional<Error> uninterruptible(pid_t pid) {
    for (const pid_t tid : process::read_threads(pid)) {
        const std::optional<ThreadStatus> thread = read_status(pid, tid);
        if (thread && thread->state != 'D') return std::nullopt;
    }
    return make_error(ErrorKind::kTimeout,
                      fmt::format("process {} ({}) sleeps uninterruptibly in the kernel (state D), "
                                  "in every thread",
                                  pid, command_of(pid)));
}

} // namespace speedbump::inject
