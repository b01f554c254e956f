// SPDX-License-Identifier: MIT
#include "control/client.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "control/protocol.h"
#include "util/clock.h"
#include "util/control_directory.h"
#include "util/fd.h"

namespace speedbump::control {

namespace {

using std::chrono::milliseconds;

// More than the status of a session with every target there can be.
constexpr size_t kMaxAnswerBytes = 256u << 20;

// The PID that the whole text stands for, or nothing.
std::optional<pid_t> parse_pid(std::string_view text) {
    pid_t pid = 0;
    const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), pid);
    const bool is_good = status == std::errc() && stop == text.data() + text.size() && pid > 0;
    return is_good ? std::optional(pid) : std::nullopt;
}

// The PID of the hidden socket of a session that has not begun, ".PID.new".
std::optional<pid_t> parse_hidden(std::string_view name) {
    if (!name.starts_with(".") || !name.ends_with(".new") || name.size() < 6) return std::nullopt;
    return parse_pid(name.substr(1, name.size() - 5));
}

std::string no_session(pid_t pid) {
    return "no live session " + std::to_string(pid);
}

// Connected, or the errno. Never waits: a full queue is EAGAIN.
Result<Fd> connect_to(const Fd& directory, pid_t pid) {
    Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) return errno_error("socket", errno);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_in(directory, std::to_string(pid)).c_str(),
                 sizeof(address.sun_path) - 1);
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
        return errno_error("connect to session " + std::to_string(pid), errno);
    }
    return fd;
}

// Waits until the descriptor can be read or written.
Result<void> wait_for(const Fd& fd, short events, Clock::time_point deadline, pid_t pid) {
    while (true) {
        const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
        pollfd one = {fd.get(), events, 0};
        const int ready =
            ::poll(&one, 1, static_cast<int>(std::max(left, milliseconds(0)).count()));
        if (ready > 0) return {};
        if (ready < 0 && errno == EINTR) continue;
        if (ready < 0) return errno_error("poll", errno);
        return make_error(ErrorKind::kTimeout,
                          "session " + std::to_string(pid) + " does not answer");
    }
}

Result<void> send_all(const Fd& fd, std::string_view text, Clock::time_point deadline, pid_t pid) {
    while (!text.empty()) {
        const ssize_t sent = ::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
        if (sent >= 0) {
            text.remove_prefix(static_cast<size_t>(sent));
        } else if (errno == EAGAIN) {
            if (auto ready = wait_for(fd, POLLOUT, deadline, pid); !ready) return ready;
        } else if (errno == EPIPE || errno == ECONNRESET) {
            return {}; // it may have left an answer
        } else if (errno != EINTR) {
            return errno_error("send to session " + std::to_string(pid), errno);
        }
    }
    return {};
}

Result<std::string> receive_line(const Fd& fd, Clock::time_point deadline, pid_t pid) {
    std::string text;
    std::array<char, 65536> bytes;
    while (text.size() < kMaxAnswerBytes) {
        if (auto ready = wait_for(fd, POLLIN, deadline, pid); !ready) {
            return std::move(ready).error();
        }
        const ssize_t got = ::read(fd.get(), bytes.data(), bytes.size());
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got == 0 || (got < 0 && errno == ECONNRESET)) {
            return make_error(ErrorKind::kNotFound,
                              "session " + std::to_string(pid) + " ended before it answered");
        }
        if (got < 0) return errno_error("read from session " + std::to_string(pid), errno);
        const std::string_view part(bytes.data(), static_cast<size_t>(got));
        const size_t end = part.find('\n');
        text += part.substr(0, end);
        if (end != std::string_view::npos) return text;
    }
    return make_error(ErrorKind::kInvalid,
                      "the answer of session " + std::to_string(pid) + " is too long");
}

} // namespace

Result<std::vector<pid_t>> live_sessions(const std::string& directory) {
    std::vector<pid_t> found;
    auto opened = open_control_directory(directory, false);
    if (!opened && opened.error().kind == ErrorKind::kNotFound) return found;
    if (!opened) return std::move(opened).error();
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(path_in(*opened, "").c_str()),
                                                     ::closedir);
    if (!stream) return errno_error("list " + directory, errno);
    while (const dirent* entry = ::readdir(stream.get())) {
        if (const auto hidden = parse_hidden(entry->d_name)) {
            if (::kill(*hidden, 0) != 0 && errno == ESRCH) {
                ::unlinkat(opened->get(), entry->d_name, 0);
            }
        }
        const auto pid = parse_pid(entry->d_name);
        if (!pid) continue;
        const auto connected = connect_to(*opened, *pid);
        if (!connected && connected.error().error_number == ECONNREFUSED) {
            ::unlinkat(opened->get(), entry->d_name, 0);
        } else if (connected || connected.error().error_number == EAGAIN) {
            found.push_back(*pid);
        }
    }
    std::sort(found.begin(), found.end());
    return found;
}

Result<std::string> ask_session(const std::string& directory, pid_t pid, const std::string& request,
                                milliseconds timeout) {
    const auto deadline = Clock::now() + timeout;
    auto opened = open_control_directory(directory, false);
    if (!opened && opened.error().kind == ErrorKind::kNotFound) {
        return make_error(ErrorKind::kNotFound, no_session(pid));
    }
    if (!opened) return std::move(opened).error();
    const auto connected = connect_to(*opened, pid);
    if (!connected) {
        const int error_number = connected.error().error_number;
        if (error_number == ENOENT || error_number == ECONNREFUSED) {
            return make_error(ErrorKind::kNotFound, no_session(pid));
        }
        if (error_number == EAGAIN) {
            return make_error(ErrorKind::kTimeout,
                              "session " + std::to_string(pid) + " does not answer");
        }
        return connected.error();
    }
    if (auto sent = send_all(*connected, request, deadline, pid); !sent) {
        return std::move(sent).error();
    }
    auto answer = receive_line(*connected, deadline, pid);
    if (!answer) return answer;
    return read_control_answer(std::move(*answer));
}

} // namespace speedbump::control
