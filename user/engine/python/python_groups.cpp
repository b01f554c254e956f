// SPDX-License-Identifier: MIT
// How the functions of lines are told apart while hooks are in (HookEngine::regroup()).
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "engine/python/python_engine.h"
#include "engine/python/python_packets.h"
#include "engine/python/python_texts.h"
#include "util/channel.h"
#include "util/clock.h"
#include "util/log.h"

namespace speedbump::engine {

using std::chrono::milliseconds;

int PythonEngine::send_groups(const Process& process) const {
    const int file = groups_->get();
    const std::string packet = fmt::format(R"({{"op":"groups","number":{}}})", grouping_);
    return send_packet(process.channel.get(), packet, {&file, 1});
}

// Until it has answered, or is gone.
Result<void> PythonEngine::wait_grouped(pid_t pid, Clock::time_point deadline) {
    // What it tells of functions meanwhile is kept until somebody polls.
    constexpr size_t kMaxMeanwhile = size_t{32} << 20;
    for (size_t meanwhile = 0;;) {
        const auto process = processes_.find(pid);
        if (process == processes_.end()) return {};
        if (process->second.grouping == grouping_) {
            if (process->second.not_grouped.empty()) return {};
            return make_error(ErrorKind::kInvalid,
                              fmt::format("process {} cannot regroup its functions: {}", pid,
                                          process->second.not_grouped));
        }
        pollfd state[2] = {{process->second.channel.get(), POLLIN, 0},
                           {process->second.pid_fd.get(), POLLIN, 0}};
        const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
        const int ready = left > 0 ? ::poll(state, 2, static_cast<int>(left)) : 0;
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0)
            return make_error(ErrorKind::kTimeout,
                              fmt::format("process {} has not regrouped its functions in time: a "
                                          "call into C holds the interpreter lock",
                                          pid));
        const std::optional<std::string> packet = receive(process->second.channel.get());
        meanwhile += packet ? packet->size() : 0;
        if (meanwhile > kMaxMeanwhile)
            return make_error(ErrorKind::kInvalid,
                              fmt::format("process {} tells of functions without end instead of "
                                          "regrouping them",
                                          pid));
        if (packet && handle(pid, *packet, events_)) continue;
        // What poll() would report, who does not see it any more.
        if (!packet)
            events_.push_back(
                {PythonEvent::Kind::kGone, pid, {}, state[1].revents ? "exit" : "hang-up"});
        forget(pid);
    }
}

uint64_t PythonEngine::grouping() const {
    const std::lock_guard lock(mutex_);
    return grouping_;
}

Result<void> PythonEngine::regroup(const Regrouping& regrouping, milliseconds timeout) {
    const Clock::time_point begun = Clock::now();
    auto sealed = sealed_text("speedbump-groups", text_of(regrouping));
    if (!sealed) return std::move(sealed).error();
    {
        const std::lock_guard lock(mutex_);
        groups_ = std::make_shared<const Fd>(std::move(*sealed));
        ++grouping_;
    }
    const Clock::time_point deadline = Clock::now() + timeout;
    std::vector<pid_t> told;
    for (const auto& [pid, process] : processes_) {
        const int error = send_groups(process);
        if (error == 0) told.push_back(pid);
        // One that has hung up is gone, of which poll() tells.
        if (error == EAGAIN)
            return make_error(ErrorKind::kTimeout,
                              fmt::format("process {} does not read what it is told", pid));
    }
    std::chrono::nanoseconds longest{0};
    for (const pid_t pid : told) {
        if (auto grouped = wait_grouped(pid, deadline); !grouped) return grouped;
        const auto process = processes_.find(pid);
        if (process != processes_.end()) longest = std::max(longest, process->second.held);
    }
    log::debug(
        fmt::format("{} Python processes regrouped by {} lines in {:.1f} ms; the longest hold of "
                    "an interpreter "
                    "lock: {} us",
                    told.size(), regrouping.groups.size(),
                    std::chrono::duration<double, std::milli>(Clock::now() - begun).count(),
                    longest.count() / 1000));
    return {};
}

} // namespace speedbump::engine
