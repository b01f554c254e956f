// SPDX-License-Identifier: MIT
#include "experiment/program_output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "util/clock.h"
#include "util/fd.h"
#include "util/spawn.h"
#include "util/text.h"

namespace speedbump::experiment {

namespace {

Result<std::string> read_all(const Fd& from, Clock::time_point deadline, size_t max_size) {
    std::string text;
    for (;;) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
        pollfd wait{from.get(), POLLIN, 0};
        const int ready = left.count() <= 0 ? 0 : ::poll(&wait, 1, static_cast<int>(left.count()));
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) return make_error(ErrorKind::kTimeout, "takes too long");
        char buffer[4096];
        const ssize_t got = ::read(from.get(), buffer, sizeof(buffer));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return text;
        text.append(buffer, static_cast<size_t>(got));
        if (text.size() > max_size) return make_error(ErrorKind::kInvalid, "prints too much");
    }
}

// Waits until a child ends, which stays to be waited for. It may have closed its output long
// before.
bool has_ended(pid_t pid, Clock::time_point deadline) {
    const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!process.valid()) return true; // no descriptors left: waits without a limit
    for (;;) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
        pollfd wait{process.get(), POLLIN, 0};
        const int ready = ::poll(&wait, 1, std::max(0, static_cast<int>(left.count())));
        if (ready >= 0 || errno != EINTR) return ready != 0;
    }
}

} // namespace

Result<ProgramOutput> output_of(std::vector<std::string> command,
                                std::chrono::milliseconds patience, size_t max_size,
                                const Fd* errors) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error("pipe", errno);
    Fd output(ends[0]), input(ends[1]);
    // A group of its own, so that what it has started can be ended with it.
    const auto pid =
        spawn(command, input, {.has_input = false, .is_group = true, .errors = errors});
    if (!pid) return pid.error();
    input.reset();
    const Clock::time_point deadline = Clock::now() + patience;
    auto text = read_all(output, deadline, max_size);
    if (text && !has_ended(*pid, deadline))
        text = make_error(ErrorKind::kTimeout, "takes too long");
    if (!text) ::kill(-*pid, SIGKILL);
    int status = 0;
    while (::waitpid(*pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (!text)
        return make_error(text.error().kind,
                          "'" + printable(command.back()) + "' " + text.error().message);
    return ProgramOutput{std::move(*text), status};
}

} // namespace speedbump::experiment
