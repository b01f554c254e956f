// SPDX-License-Identifier: MIT
#include "inject/blocking_call.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <termios.h>
#include <unistd.h>

#include <array>
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
bool is_event_file(int fd) {
    std::array<char, 64> name = {};
    const std::string link = fmt::format("/proc/self/fd/{}", fd);
    const ssize_t size = readlink(link.c_str(), name.data(), name.size());
    const std::string_view text(name.data(), size > 0 ? static_cast<size_t>(size) : 0);
    for (std::string_view known : {"anon_inode:[eventfd]", "anon_inode:[timerfd]",
                                   "anon_inode:[signalfd]", "anon_inode:inotify"})
        if (text == known) return true;
    return false;
}

bool reads_at_once(int fd) {
    struct stat info {};
    if (fstat(fd, &info) != 0) return false;
    if (S_ISSOCK(info.st_mode)) return has_no_timeout(fd) && takes_what_comes(fd);
    if (S_ISFIFO(info.st_mode)) return true;
    if (S_ISCHR(info.st_mode)) return reads_lines_or_bytes(fd);
    return is_event_file(fd);
}

Interruption harmless_if(bool condition) {
    return condition ? Interruption::kHarmless : Interruption::kHarmful;
}

} // namespace

Interruption judge_interruption(int pid_fd, const BlockedCall& call) {
    const auto descriptor = [&] {
        return Fd(static_cast<int>(
            syscall(SYS_pidfd_getfd, pid_fd, static_cast<int>(call.arguments[0]), 0)));
    };
    const auto receives = [&](uint64_t flags) {
        return harmless_if((flags & MSG_WAITALL) == 0 && reads_at_once(descriptor().get()));
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
        case SYS_read:
        case SYS_readv:
            return receives(0);
        case SYS_recvfrom:
            return receives(call.arguments[3]);
        case SYS_recvmsg:
            return receives(call.arguments[2]);
        case SYS_accept:
        case SYS_accept4:
            return harmless_if(has_no_timeout(descriptor().get()));
        default:
            return Interruption::kHarmful;
    }
}

bool may_be_issued_again(long number) {
    return common_call(number) == SYS_epoll_pwait || number == SYS_epoll_pwait2;
}

} // namespace speedbump::inject
