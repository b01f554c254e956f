// SPDX-License-Identifier: MIT
#include "lifecycle/child.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <sstream>

#include "util/descriptors.h"

namespace speedbump::lifecycle {

namespace {

constexpr int kChildFailed = 1; // its exit status where nothing better is known

struct Channel {
    Fd ours;
    Fd childs;
};

// A socket pair: other than with a pipe, writing to a dead child raises no SIGPIPE.
Result<Channel> make_channel() {
    std::array<int, 2> ends = {};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
        return errno_error("socketpair", errno);
    }
    return Channel{Fd(ends[0]), Fd(ends[1])};
}

// 0, or why the file can't be executed.
int check_executable(const std::string& path) {
    struct stat status = {};
    if (::stat(path.c_str(), &status) != 0) return errno;
    if (!S_ISREG(status.st_mode)) return EACCES;
    return ::access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

int status_of(int wait_status) {
    if (WIFSIGNALED(wait_status)) return kEndedBySignal + WTERMSIG(wait_status);
    return WEXITSTATUS(wait_status);
}

void prepend_to_python_path(const std::string& entry) {
    const char* present = ::getenv("PYTHONPATH");
    const bool any = present != nullptr && *present != '\0';
    ::setenv("PYTHONPATH", (any ? entry + ":" + present : entry).c_str(), 1);
}

// The child's life before exec: a string that ends with a NUL from the channel lets it go on, the
// errno of a failed exec goes back. This program had one thread, so the child may do as it likes.
[[noreturn]] void hold_and_exec(int channel, char* const* arguments) {
    std::string python_path_entry;
    for (char byte = -1;;) {
        const ssize_t got = ::read(channel, &byte, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got != 1) ::_exit(kChildFailed);
        if (byte == 0) break;
        python_path_entry += byte;
    }
    if (!python_path_entry.empty()) prepend_to_python_path(python_path_entry);
    allow_descriptors_as_before();
    ::execvp(arguments[0], arguments);
    const int error_number = errno;
    ::send(channel, &error_number, sizeof(error_number), MSG_NOSIGNAL);
    ::_exit(exit_status_of_exec_error(error_number));
}

} // namespace

int exit_status_of_exec_error(int error_number) {
    return error_number == ENOENT || error_number == ENOTDIR ? kProgramNotThere
                                                             : kProgramNotRunnable;
}

Result<std::string> find_program(const std::string& name) {
    if (name.find('/') != std::string::npos) {
        if (const int error_number = check_executable(name)) {
            return errno_error(name, error_number);
        }
        return name;
    }
    const char* path = std::getenv("PATH");
    std::istringstream directories(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
    int error_number = ENOENT;
    for (std::string directory; std::getline(directories, directory, ':');) {
        const std::string candidate = (directory.empty() ? "." : directory) + "/" + name;
        const int problem = check_executable(candidate);
        if (problem == 0) return candidate;
        if (problem == EACCES) error_number = EACCES;
    }
    return errno_error(name, error_number);
}

Result<HeldChild> HeldChild::start(const std::vector<std::string>& command) {
    auto channel = make_channel();
    if (!channel) return std::move(channel).error();
    std::vector<char*> arguments;
    for (const std::string& argument : command) {
        arguments.push_back(const_cast<char*>(argument.c_str()));
    }
    arguments.push_back(nullptr);

    HeldChild child;
    child.pid_ = ::fork();
    if (child.pid_ < 0) return errno_error("fork", errno);
    if (child.pid_ == 0) {
        ::close(channel->ours.get());
        hold_and_exec(channel->childs.get(), arguments.data());
    }
    child.channel_ = std::move(channel->ours);
    return child;
}

HeldChild::~HeldChild() {
    if (channel_.valid() && !status_) {
        channel_.reset();
        wait();
    }
}

Result<void> HeldChild::release(const std::string& python_path_entry) {
    const size_t size = python_path_entry.size() + 1; // with the NUL
    if (::send(channel_.get(), python_path_entry.c_str(), size, MSG_NOSIGNAL) !=
        static_cast<ssize_t>(size)) {
        return errno_error("start the program", errno);
    }
    int error_number = 0;
    ssize_t got = 0;
    do {
        got = ::read(channel_.get(), &error_number, sizeof(error_number));
    } while (got < 0 && errno == EINTR);
    channel_.reset();
    if (got == sizeof(error_number)) return errno_error("exec", error_number);
    return {};
}

std::optional<int> HeldChild::poll() {
    int wait_status = 0;
    if (!status_ && ::waitpid(pid_, &wait_status, WNOHANG) == pid_) {
        status_ = status_of(wait_status);
    }
    return status_;
}

int HeldChild::wait() {
    int wait_status = 0;
    while (!status_) {
        const pid_t reaped = ::waitpid(pid_, &wait_status, 0);
        if (reaped < 0 && errno == EINTR) continue;
        status_ = reaped == pid_ ? status_of(wait_status) : kChildFailed;
    }
    return *status_;
}

} // namespace speedbump::lifecycle
