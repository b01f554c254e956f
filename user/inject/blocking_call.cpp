// SPDX-License-Identifier: MIT
#include "inject/blocking_call.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "inject/machine.h"
#include "util/fd.h"

namespace speedbump::inject {
namespace {

bool has_no_timeout(int socket) {
    timeval limit{};
    socklen_t size = sizeof(limit);
    return getsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, &size) == 0 && limit.tv_sec == 0 &&
           limit.tv_usec == 0;
}

// Whether a read takes what comes first, so that one that waits has taken nothing.
bool takes_what_comes(int socket) {
    int lowest = 0;
    socklen_t size = sizeof(lowest);
    return getsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &lowest, &size) == 0 && lowest <= 1;
}

bool reads_lines_or_bytes(int terminal) {
    termios modes{};
    if (tcgetattr(terminal, &modes) != 0) return false;
    return (modes.c_lflag & ICANON) != 0 || (modes.c_cc[VMIN] <= 1 && modes.c_cc[VTIME] == 0);
}

// Files that are in no file system, whose reads take all or nothing.
bool is_event_file(const std::string& link) {
    std::array<char, 64> name = {};
    const ssize_t size = readlink(link.c_str(), name.data(), name.size());
    const std::string_view text(name.data(), size > 0 ? static_cast<size_t>(size) : 0);
    for (std::string_view known : {"anon_inode:[eventfd]", "anon_inode:[timerfd]",
                                   "anon_inode:[signalfd]", "anon_inode:inotify"})
        if (text == known) return true;
    return false;
}

// By the device's number (Documentation/admin-guide/devices.txt of the kernel's).
bool is_terminal(uint32_t major) {
    constexpr uint32_t kFirstPty = 136, kLastPty = 143;
    if (major >= kFirstPty && major <= kLastPty) return true;
    for (const uint32_t known : {4, 5, 166, 188, 204})
        if (major == known) return true;
    return false;
}

// A descriptor of a process. What it stands for is asked without input or output: threads may be
// held meanwhile, and its file system may wait for a server, or for one of them. A copy of it is
// made of sockets and terminals alone, as the end of a copy is told to the file system, too.
class Descriptor {
  public:
    Descriptor(pid_t pid, int pid_fd, uint64_t number)
        : pid_fd_(pid_fd),
          number_(static_cast<int>(number)),
          link_(fmt::format("/proc/{}/fd/{}", pid, number_)) {}

    bool reads_at_once() const {
        struct statx info {};
        if (statx(AT_FDCWD, link_.c_str(), AT_STATX_DONT_SYNC, STATX_TYPE, &info) != 0)
            return false;
        if (S_ISSOCK(info.stx_mode)) {
            const Fd socket = copy();
            return has_no_timeout(socket.get()) && takes_what_comes(socket.get());
        }
        if (S_ISFIFO(info.stx_mode)) return true;
        if (S_ISCHR(info.stx_mode))
            return is_terminal(info.stx_rdev_major) && reads_lines_or_bytes(copy().get());
        return is_event_file(link_);
    }
    // Of a socket.
    bool waits_without_end() const { return has_no_timeout(copy().get()); }

  private:
    Fd copy() const { return Fd(static_cast<int>(syscall(SYS_pidfd_getfd, pid_fd_, number_, 0))); }

    int pid_fd_;
    int number_;
    std::string link_;
};

Interruption harmless_if(bool condition) {
    return condition ? Interruption::kHarmless : Interruption::kHarmful;
}

} // namespace

Interruption judge_interruption(pid_t pid, int pid_fd, const BlockedCall& call) {
    const auto descriptor = [&] { return Descriptor(pid, pid_fd, call.arguments[0]); };
    const auto receives = [&](uint64_t flags) {
        return harmless_if((flags & MSG_WAITALL) == 0 && descriptor().reads_at_once());
    };
    switch (common_call(call.number)) {
        case SYS_ppoll:
        case SYS_pselect6:
        case SYS_nanosleep:
        case SYS_clock_nanosleep:
        case SYS_wait4:
        case SYS_waitid:
        // A sleep, poll or futex with a time-out that goes on after an earlier stop.
        case SYS_restart_syscall:
            return Interruption::kHarmless;
        case SYS_futex: // a plain FUTEX_WAIT is one of glibc's own locks
            return harmless_if((call.arguments[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET);
        case SYS_epoll_pwait:
            return static_cast<int32_t>(call.arguments[3]) > 0 ? Interruption::kRelativeTime
                                                               : Interruption::kHarmless;
        case SYS_epoll_pwait2: // its time is in memory, which is not ours to write
            return harmless_if(call.arguments[3] == 0);
        case SYS_rt_sigtimedwait: // the same
            return harmless_if(call.arguments[2] == 0);
        case SYS_read:
        case SYS_readv:
            return receives(0);
        case SYS_recvfrom:
            return receives(call.arguments[3]);
        case SYS_recvmsg:
            return receives(call.arguments[2]);
        case SYS_accept:
        case SYS_accept4:
            return harmless_if(descriptor().waits_without_end());
        default:
            return Interruption::kHarmful;
    }
}

bool may_be_issued_again(long number) {
    return has_relative_time(number) || number == SYS_epoll_pwait2 || number == SYS_rt_sigtimedwait;
}

bool has_relative_time(long number) {
    return common_call(number) == SYS_epoll_pwait;
}

} // namespace speedbump::inject
