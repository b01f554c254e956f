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
#include <thread>

#include "inject/process_state.h"
#include "process/memory.h"

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
    Clock::time_point deadline = Clock::now() + kThreadTimeout;
    for (nanoseconds pause{20000};;) {
        auto region = memory.value<Region>(report.region + kDataOffset);
        if (region && region->magic == kRegionMagic &&
            __atomic_load_n(&region->state, __ATOMIC_ACQUIRE) != kRegionEmpty) {
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
        if (Clock::now() > deadline)
            return make_error(
                ErrorKind::kTimeout,
                fmt::format("process {}: the borrowed thread {} made no thread within "
                            "{} ms",
                            pid, report.borrowed, kThreadTimeout.count()));
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
