// SPDX-License-Identifier: MIT
#include "util/heir.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <iterator>
#include <optional>

#include "util/apart.h"
#include "util/fd.h"

namespace speedbump {

namespace {

// Without memory of its own, as it runs after a fork.
void close_all_but(std::initializer_list<int> kept, std::initializer_list<int> own) {
    unsigned first = 0;
    for (;;) {
        std::optional<unsigned> next; // the least of them from there on
        const auto consider = [&](int fd) {
            const auto number = static_cast<unsigned>(fd);
            if (fd >= 0 && number >= first && (!next || number < *next)) next = number;
        };
        for (const int fd : kept) consider(fd);
        for (const int fd : own) consider(fd);
        if (!next) break;
        if (*next > first) ::close_range(first, *next - 1, 0);
        first = *next + 1;
    }
    ::close_range(first, ~0u, 0);
}

} // namespace

Result<Heir> Heir::start_with(const char* name, std::initializer_list<int> kept,
                              void (*work)(void*), void* argument) {
    const Fd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
    if (!self.valid()) return errno_error("pidfd_open", errno);
    Fd begin(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!begin.valid()) return errno_error("eventfd", errno);
    std::array<int, 2> ends = {};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return errno_error("pipe", errno);
    const Fd is_apart(ends[0]);
    Fd tell_apart(ends[1]);
    // No signal may reach it between fork and its own mask.
    sigset_t all = {};
    sigset_t before = {};
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    const pid_t pid = fork_apart(name);
    if (pid == 0) {
        if (::chdir("/") != 0) ::_exit(1);
        close_all_but(kept, {self.get(), begin.get(), tell_apart.get()});
        if (::write(tell_apart.get(), "1", 1) != 1) ::_exit(1);
        ::close(tell_apart.get());
        pollfd reasons[] = {{self.get(), POLLIN, 0}, {begin.get(), POLLIN, 0}};
        while (::poll(reasons, std::size(reasons), -1) <= 0) {
        }
        work(argument);
        ::_exit(0);
    }
    const int error_number = errno;
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (pid < 0) return errno_error("fork", error_number);
    Heir heir(pid, std::move(begin));
    // Until it says so what is done to this process by name reaches it, too.
    tell_apart.reset();
    char byte = 0;
    ssize_t got = 0;
    while ((got = ::read(is_apart.get(), &byte, 1)) < 0 && errno == EINTR) {
    }
    if (got != 1)
        return make_error(ErrorKind::kIo, "the process that is to clean up ended as it started");
    return heir;
}

void Heir::begin() {
    if (std::exchange(pid_, -1) >= 0) ::eventfd_write(begin_.get(), 1);
}

Heir::~Heir() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL); // rather than wait for one that someone has stopped
    while (::waitpid(pid_, nullptr, __WALL) < 0 && errno == EINTR) {
    }
}

} // namespace speedbump
