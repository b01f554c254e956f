// SPDX-License-Identifier: MIT
#include "inject/thread_start.h"

#include <fmt/format.h>
#include <linux/kcmp.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>
#include <thread>

#include "inject/process_state.h"
#include "process/memory.h"
#include "process/threads.h"

namespace speedbump::inject {

using process::RemoteMemory;

namespace {

constexpr milliseconds kThreadTimeout{3000};
constexpr milliseconds kLeaveTimeout{200};

// What the errno of a borrowed thread says of the process.
Error start_error(pid_t pid, int error_number) {
    Error error = errno_error(fmt::format("process {}: start a thread there", pid), error_number);
    switch (error_number) {
        case EAGAIN:
            return std::move(error).with_hint("the process is at its limit of tasks or memory");
        case ENOMEM:
            return std::move(error).with_hint("the process is at its limit of memory (RLIMIT_AS)");
        case EACCES: // of mprotect() alone
            error.kind = ErrorKind::kUnsupported;
            return std::move(error).with_hint(
                "the process may not execute memory that was written to: memory-deny-write-"
                "execute (PR_SET_MDWE), or a security module");
        default:
            return error;
    }
}

std::optional<Error> failure_of(pid_t pid, const Region& region) {
    if (region.state != kRegionFailed) return std::nullopt;
    Error error =
        errno_error(fmt::format("process {}: make or take a socket there", pid), region.error);
    if (region.error == EMFILE)
        return std::move(error).with_hint("the process is at its limit of descriptors");
    return error;
}

// When a wait for a thread began, and what the borrowed one had had of the CPUs by then.
struct Started {
    Clock::time_point at;
    std::optional<process::ThreadTimes> times;
};

// What the borrowed thread does instead of what it is waited for.
std::string doing(pid_t pid, pid_t tid, const Started& since) {
    const std::optional<ThreadStatus> status = read_status(pid, tid);
    const auto times = process::read_thread_times(pid, tid);
    if (!status || !times || !since.times) return "it has ended";
    const auto ms = [](nanoseconds time) { return std::chrono::round<milliseconds>(time).count(); };
    std::string text =
        fmt::format("it has had a CPU for {} ms and waited for one for {} ms",
                    ms(times->ran - since.times->ran), ms(times->waited - since.times->waited));
    const std::optional<BlockedCall> call = read_blocked_call(pid, tid);
    if (!call) return fmt::format("{}, and could run ({})", text, status->state);
    return call->number < 0
               ? fmt::format("{}, and waits in no system call ({})", text, status->state)
               : fmt::format("{}, and waits in system call {} ({})", text, call->number,
                             status->state);
}

Error not_started(pid_t pid, pid_t borrowed, bool is_left, const Started& since) {
    const auto passed = std::chrono::round<milliseconds>(Clock::now() - since.at).count();
    if (is_left)
        return make_error(ErrorKind::kTimeout,
                          fmt::format("process {}: a new thread there got no CPU within {} ms", pid,
                                      passed))
            .with_hint("its cgroup has used up its quota of CPU time, or others go before it");
    return make_error(ErrorKind::kTimeout,
                      fmt::format("process {}: the borrowed thread {} made no thread within {} ms: "
                                  "{}",
                                  pid, borrowed, passed, doing(pid, borrowed, since)));
}

} // namespace

Result<void> wait_for_own_memory(pid_t pid, Clock::time_point deadline) {
    for (;;) {
        const std::optional<ThreadStatus> status = read_status(pid, pid);
        if (!status) return errno_error(fmt::format("process {}", pid), ESRCH);
        const pid_t parent = status->parent;
        if (parent == 0 || syscall(SYS_kcmp, pid, parent, KCMP_VM, 0, 0) != 0) return {};
        if (Clock::now() > deadline)
            return make_error(ErrorKind::kTimeout,
                              fmt::format("process {} is on the memory of its parent {}: a child "
                                          "of vfork() that has not called exec yet",
                                          pid, parent));
        std::this_thread::sleep_for(milliseconds(5));
    }
}

Result<Region> wait_for_thread(pid_t pid, Fire& fire, const FireReport& report, int pid_fd) {
    RemoteMemory memory(pid);
    const Started before{Clock::now(), process::read_thread_times(pid, report.borrowed)};
    const Clock::time_point deadline = before.at + kThreadTimeout;
    for (nanoseconds pause{20000};;) {
        auto region = memory.value<Region>(report.region + kDataOffset);
        if (region && region->magic != kRegionMagic) region.reset();
        if (region && __atomic_load_n(&region->state, __ATOMIC_ACQUIRE) != kRegionEmpty) {
            fire.confirm_answer();
            if (std::optional<Error> failure = failure_of(pid, *region)) return *failure;
            return *region;
        }
        if (int error = fire.borrowed_error()) {
            fire.confirm_answer();
            return start_error(pid, error);
        }
        pollfd ended{pid_fd, POLLIN, 0};
        if (poll(&ended, 1, 0) > 0) return errno_error(fmt::format("process {}", pid), ESRCH);
        // The new thread waits for nobody once the borrowed one has left.
        const bool is_left = region && region->left != 0;
        if (is_given_up(pid, is_left ? std::nullopt : std::optional(report.borrowed), deadline))
            return not_started(pid, report.borrowed, is_left, before);
        std::this_thread::sleep_for(pause);
        pause = std::min<nanoseconds>(pause + pause / 4, milliseconds(1));
    }
}

std::optional<Error> read_failure(pid_t pid, uint64_t region) {
    const auto found = RemoteMemory(pid).value<Region>(region + kDataOffset);
    if (!found || found->magic != kRegionMagic) return std::nullopt;
    return failure_of(pid, *found);
}

void wait_until_clean(pid_t pid, Fire& fire, uint64_t region, bool serving) {
    RemoteMemory memory(pid);
    Clock::time_point deadline = Clock::now() + kLeaveTimeout;
    for (nanoseconds pause{50000};;) {
        bool restored = fire.restore();
        bool unmapped = serving || !memory.value<uint32_t>(region + kDataOffset);
        if ((restored && unmapped) || Clock::now() > deadline) return;
        std::this_thread::sleep_for(pause);
        pause = std::min<nanoseconds>(pause * 2, milliseconds(5));
    }
}

Result<void> start_thread(pid_t pid, const Fd& pid_fd, int its_fd,
                          const std::function<Result<void>(int bootstrap)>& hand) {
    const Fd bootstrap(static_cast<int>(syscall(SYS_pidfd_getfd, pid_fd.get(), its_fd, 0)));
    if (!bootstrap.valid())
        return errno_error(fmt::format("process {}: take a descriptor", pid), errno);
    return hand(bootstrap.get());
}

} // namespace speedbump::inject
