// SPDX-License-Identifier: MIT
#include "inject/mapper.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "inject/fire.h"
#include "inject/machine.h"
#include "inject/process_state.h"
#include "inject/seccomp_filter.h"
#include "inject/thread_start.h"
#include "util/channel.h"

namespace speedbump::inject {
namespace {

constexpr milliseconds kAnswerTimeout{3000};
constexpr milliseconds kBetweenLooks{50};

Result<MapAnswer> read_answer(pid_t pid, pid_t mapper, int socket) {
    const Clock::time_point deadline = Clock::now() + kAnswerTimeout;
    while (!wait_readable(socket, Clock::now() + kBetweenLooks))
        // It may have answered in between, and wait for no CPU for that reason.
        if (is_given_up(pid, mapper, deadline) &&
            !wait_readable(socket, Clock::now() + kBetweenLooks))
            return make_error(
                ErrorKind::kTimeout,
                fmt::format("process {}: the thread that maps memory {}", pid,
                            lacks_a_cpu(pid, mapper) ? "gets no CPU" : "does not answer"));
    MapAnswer answer{};
    const ssize_t got = recv(socket, &answer, sizeof(answer), MSG_DONTWAIT);
    if (got != static_cast<ssize_t>(sizeof(answer)))
        return make_error(ErrorKind::kIo,
                          fmt::format("process {}: the thread that maps memory has ended", pid));
    return answer;
}

Result<void> judge_answer(pid_t pid, const MapAnswer& answer) {
    const std::string who = fmt::format("process {}", pid);
    switch (answer.step) {
        case kMapDone:
            return {};
        case kMapMembarrier:
            return errno_error(who + ": membarrier for changed code", answer.error);
        case kMapClock:
            return make_error(ErrorKind::kUnsupported,
                              who + " may not read the time stamp counter (PR_SET_TSC)");
        default:
            return errno_error(who + ": map memory there", answer.error);
    }
}

} // namespace

Result<void> map_memory(const Turn& turn, const std::vector<MapOrder>& orders,
                        const int (&files)[kMappedFiles], Clock::time_point deadline) {
    const pid_t pid = turn.pid();
    const Fd& pid_fd = turn.pid_fd();
    if (auto can = can_change_code(pid); !can) return can;
    if (auto own = wait_for_own_memory(pid, deadline); !own) return own;
    auto modules = process::load_modules(pid);
    if (!modules) return std::move(modules.error());
    if (auto reason = obstacle(pid)) return std::move(*reason);

    MapOrders message{};
    message.count = static_cast<uint32_t>(std::min(orders.size(), kMaxMappings));
    std::copy_n(orders.begin(), message.count, message.orders);
    auto fire = Fire::prepare(pid, *modules, {mapper_offset(), &mapper_calls()});
    if (!fire) return std::move(fire.error());
    auto report = (*fire)->fire(deadline);
    if (!report) return std::move(report.error());
    auto region = wait_for_thread(pid, **fire, *report, pid_fd.get());
    Result<void> done;
    const pid_t mapper = region ? thread_named(pid, static_cast<pid_t>(region->thread_id)) : 0;
    if (region)
        done = start_thread(pid, pid_fd, region->our_fd, [&](int bootstrap) -> Result<void> {
            const std::string_view text(reinterpret_cast<const char*>(&message), sizeof(message));
            if (const int error = send_packet(bootstrap, text, files); error != 0)
                return errno_error("hand over the memory", error);
            const auto answer = read_answer(pid, mapper, bootstrap);
            return answer ? judge_answer(pid, *answer) : Result<void>(answer.error());
        });
    else
        done = std::move(region.error());
    wait_until_clean(pid, **fire, report->region, false);
    if (region) (*fire)->heed_late_signal(region->restarts != 0);
    return done;
}

} // namespace speedbump::inject
