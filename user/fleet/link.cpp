// SPDX-License-Identifier: MIT
#include "fleet/link.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "util/clock.h"
#include "util/spawn.h"
#include "util/text.h"

namespace speedbump::fleet {

namespace {

using std::chrono::milliseconds;

constexpr auto kForItsEnd = milliseconds(2000);
constexpr auto kForSignal = milliseconds(1000);
constexpr auto kForLastWords = milliseconds(2000);
constexpr size_t kMostSaid = 2000;
constexpr size_t kShownLines = 3;

struct Pipe {
    Fd read, write;
};

Result<Pipe> make_pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error("pipe", errno);
    return Pipe{Fd(ends[0]), Fd(ends[1])};
}

void never_wait(const Fd& fd) {
    ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
}

// The agent's own error where it is among them: launchers may say much about its status behind it.
std::string last_lines(const std::string& text) {
    constexpr std::string_view kOwn = "speedbump: error:";
    if (const size_t own = text.rfind(kOwn); own != std::string::npos)
        return printable(text.substr(own, text.find('\n', own) - own));
    std::vector<std::string> lines(1);
    for (const char one : text)
        if (one != '\n')
            lines.back() += one;
        else if (!lines.back().empty())
            lines.emplace_back();
    if (lines.back().empty()) lines.pop_back();
    std::string last;
    for (size_t i = lines.size() - std::min(lines.size(), kShownLines); i < lines.size(); ++i)
        last += (last.empty() ? "" : "; ") + printable(lines[i]);
    return last;
}

} // namespace

Result<std::unique_ptr<Link>> Link::start(const std::vector<std::string>& command) {
    auto input = make_pipe(), output = make_pipe(), errors = make_pipe();
    for (const auto* pipe : {&input, &output, &errors})
        if (!*pipe) return pipe->error();
    const auto pid = spawn(command, output->write,
                           {.is_group = true, .input = &input->read, .errors = &errors->write});
    if (!pid)
        return errno_error("start '" + printable(command.front()) + "'", pid.error().error_number);
    std::unique_ptr<Link> link(new Link());
    link->pid_ = *pid;
    link->input_ = std::move(input->write);
    link->output_ = std::move(output->read);
    link->errors_ = std::move(errors->read);
    for (const Fd* fd : {&link->input_, &link->output_, &link->errors_}) never_wait(*fd);
    return link;
}

bool Link::has_exited() {
    if (status_) return true;
    int status = 0;
    const pid_t got = ::waitpid(pid_, &status, WNOHANG);
    if (got == pid_ || (got < 0 && errno == ECHILD)) status_ = status;
    return status_.has_value();
}

// Whether all of them have exited within that time.
bool Link::wait_for(std::span<Link* const> links, milliseconds time) {
    const Clock::time_point end = Clock::now() + time;
    for (;;) {
        bool have_all = true;
        for (Link* const link : links) {
            if (link->has_exited()) continue;
            have_all = false;
            link->turn(); // it must not wait for us to read
        }
        if (have_all || Clock::now() >= end) return have_all;
        ::poll(nullptr, 0, 5);
    }
}

void Link::end_all(std::span<Link* const> links) {
    for (Link* const link : links) link->close();
    if (wait_for(links, kForItsEnd)) return;
    for (Link* const link : links) {
        if (link->has_exited()) continue;
        ::kill(-link->pid_, SIGTERM);
        ::kill(-link->pid_, SIGCONT);
    }
    if (wait_for(links, kForSignal)) return;
    for (Link* const link : links)
        if (!link->has_exited()) ::kill(-link->pid_, SIGKILL);
    for (Link* const link : links)
        while (!link->has_exited()) ::poll(nullptr, 0, 5);
}

Link::~Link() {
    Link* const own = this;
    end_all({&own, 1});
}

void Link::turn() {
    if (input_.valid() && !outbox_.flush(input_)) close();
    char piece[4096];
    for (ssize_t got; (got = ::read(errors_.get(), piece, sizeof(piece))) > 0;) {
        said_.append(piece, static_cast<size_t>(got));
        if (said_.size() > kMostSaid) said_.erase(0, said_.size() - kMostSaid);
    }
    if (has_ended_) return;
    const Heard heard = read_into(lines_, output_);
    has_ended_ = heard == Heard::kEnd || lines_.is_broken();
    ended_at_ = Clock::now();
}

bool Link::has_last_words() {
    return has_ended_ &&
           (lines_.is_broken() || has_exited() || Clock::now() - ended_at_ > kForLastWords);
}

std::string Link::last_words() {
    std::string how = "its link ended";
    if (lines_.is_broken()) how = "it sent a line that is longer than any may be";
    if (!lines_.is_broken() && has_exited()) {
        if (WIFSIGNALED(*status_))
            how += fmt::format(", the launcher by signal {}", WTERMSIG(*status_));
        else if (WEXITSTATUS(*status_) != 0)
            how += fmt::format(", the launcher with status {}", WEXITSTATUS(*status_));
    }
    turn();
    const std::string said = last_lines(said_);
    return said.empty() ? how : how + ": " + said;
}

} // namespace speedbump::fleet
