// SPDX-License-Identifier: MIT
#include "inject/wait_watch.h"

#include <sched.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "inject/process_state.h"

namespace speedbump::inject {
namespace {

// Between two looks, for the later one to have seen a wait's beginning.
constexpr std::chrono::milliseconds kSoon{5};

// The scheduler's clock of a CPU now, in milliseconds: when we ourselves last ran there. Moves the
// calling thread for a moment.
std::optional<double> scheduler_clock(int cpu) {
    cpu_set_t all;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(cpu), &one);
    if (sched_getaffinity(0, sizeof(all), &all) != 0) return std::nullopt;
    if (sched_setaffinity(0, sizeof(one), &one) != 0) return std::nullopt;
    // An entry is brought up to date when its thread begins to run.
    std::this_thread::sleep_for(std::chrono::nanoseconds(1));
    std::optional<LastRun> own = read_last_run(getpid(), gettid());
    sched_setaffinity(0, sizeof(all), &all);
    if (!own || own->milliseconds == 0 || own->cpu != cpu) return std::nullopt;
    return own->milliseconds;
}

} // namespace

std::optional<WaitWatch::Wait> WaitWatch::look(pid_t tid) {
    const std::optional<LastRun> run = read_last_run(pid_, tid);
    if (!run) return std::nullopt;
    const Clock::time_point now = Clock::now();
    const auto [seen, is_first] = seen_.try_emplace(tid, Seen{run->switches, now, now, false});
    const bool is_soon = now - std::exchange(seen->second.looked, now) < kSoon;
    if (seen->second.switches != run->switches) seen->second = {run->switches, now, now, is_soon};

    Wait wait{run->switches, seen->second.when};
    const std::optional<double> clock =
        run->milliseconds > 0 ? scheduler_clock(run->cpu) : std::nullopt;
    if (clock && *clock >= run->milliseconds) {
        wait.begin = Clock::now() -
                     std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double, std::milli>(*clock - run->milliseconds));
    } else if (!seen->second.from_beginning) {
        return std::nullopt;
    }
    const std::optional<LastRun> still = read_last_run(pid_, tid);
    if (!still || still->switches != run->switches) return std::nullopt;
    return wait;
}

bool CallsInTheWay::note(pid_t pid, pid_t tid) {
    const std::optional<ThreadStatus> now = read_status(pid, tid);
    if (!now) return false;
    const auto [known, is_new] = switches_.try_emplace(tid, now->switches);
    return std::exchange(known->second, now->switches) == now->switches && !is_new;
}

} // namespace speedbump::inject
