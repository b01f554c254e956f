// SPDX-License-Identifier: MIT
#include "session/control_guard.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "util/apart.h"

namespace speedbump::session {

namespace {

// Closes every descriptor but two.
void close_all_but(int one, int other) {
    const auto low = static_cast<unsigned>(std::min(one, other));
    const auto high = static_cast<unsigned>(std::max(one, other));
    if (low > 0) ::close_range(0, low - 1, 0);
    if (high > low + 1) ::close_range(low + 1, high - 1, 0);
    ::close_range(high + 1, ~0u, 0);
}

} // namespace

void remove_control_files(const Fd& directory, const std::string& path,
                          const std::vector<std::string>& names) {
    for (const std::string& name : names) ::unlinkat(directory.get(), name.c_str(), 0);
    ::rmdir(path.c_str()); // fails while another session has a socket in it
}

Result<ControlGuard> ControlGuard::start(const Fd& directory, const std::string& path,
                                         const std::vector<std::string>& names) {
    std::array<int, 2> ends = {};
    std::array<int, 2> ready = {};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return errno_error("pipe", errno);
    const Fd guards_end(ends[0]);
    ControlGuard guard;
    guard.life_line_ = Fd(ends[1]);
    if (::pipe2(ready.data(), O_CLOEXEC) != 0) return errno_error("pipe", errno);
    const Fd is_apart(ready[0]);
    Fd not_yet(ready[1]);
    // no signal may reach the guard between fork and its own mask
    sigset_t all = {};
    sigset_t before = {};
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    guard.pid_ = fork_apart("sb-guard");
    if (guard.pid_ == 0) {
        if (::chdir("/") != 0) ::_exit(1);
        close_all_but(guards_end.get(), directory.get());
        char byte = 0;
        while (::read(guards_end.get(), &byte, 1) < 0 && errno == EINTR) {
        }
        remove_control_files(directory, path, names);
        ::_exit(0);
    }
    const int error_number = errno;
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (guard.pid_ < 0) return errno_error("fork", error_number);
    // Until then what is done to this process by name reaches the guard, too.
    not_yet.reset();
    char byte = 0;
    while (::read(is_apart.get(), &byte, 1) < 0 && errno == EINTR) {
    }
    return guard;
}

ControlGuard::ControlGuard(ControlGuard&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), life_line_(std::move(other.life_line_)) {}

ControlGuard::~ControlGuard() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL); // rather than wait for one that someone has stopped
    while (::waitpid(pid_, nullptr, __WALL) < 0 && errno == EINTR) {
    }
}

} // namespace speedbump::session
