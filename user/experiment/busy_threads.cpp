// SPDX-License-Identifier: MIT
#include "experiment/busy_threads.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "process/threads.h"
#include "util/clock.h"
#include "util/proc.h"

namespace speedbump::experiment {

namespace {

constexpr double kUsesACpu = 0.02; // of one, at least: many others may want it, too
constexpr double kNeverRests = 0.9;
constexpr size_t kMostTold = 3;

// For how long each thread has run, or waited for a CPU.
std::map<pid_t, std::chrono::nanoseconds> read_wanted(pid_t pid) {
    std::map<pid_t, std::chrono::nanoseconds> wanted;
    for (const pid_t tid : process::read_threads(pid))
        if (const auto times = process::read_thread_times(pid, tid))
            wanted[tid] = times->ran + times->waited;
    return wanted;
}

std::vector<pid_t> busy_processes(const ProcessTimes& before, const std::vector<pid_t>& tree) {
    std::set<pid_t> ignored(tree.begin(), tree.end());
    ignored.insert(::getpid());
    const ProcessTimes now = read_process_times();
    const double passed = static_cast<double>(now.at_ns - before.at_ns) / 1e9;
    std::vector<pid_t> busy;
    for (const auto& [pid, seconds] : now.seconds) {
        const auto found = before.seconds.find(pid);
        if (found == before.seconds.end() || ignored.contains(pid)) continue;
        if (seconds - found->second > kUsesACpu * passed) busy.push_back(pid);
    }
    return busy;
}

} // namespace

ProcessTimes read_process_times() {
    ProcessTimes times;
    times.at_ns = monotonic_ns();
    for (const pid_t pid : list_pids())
        if (const auto ran = process_cpu_time(pid)) times.seconds[pid] = ns(*ran) / 1e9;
    return times;
}

std::vector<BusyThread> find_busy_threads(const ProcessTimes& before,
                                          const std::vector<pid_t>& tree,
                                          std::chrono::nanoseconds look) {
    const std::vector<pid_t> candidates = busy_processes(before, tree);
    if (candidates.empty()) return {};
    std::map<pid_t, std::map<pid_t, std::chrono::nanoseconds>> wanted;
    for (const pid_t pid : candidates) wanted[pid] = read_wanted(pid);
    const uint64_t begin = monotonic_ns();
    std::this_thread::sleep_for(look);
    const auto passed = static_cast<double>(monotonic_ns() - begin);
    std::vector<BusyThread> busy;
    for (const pid_t pid : candidates)
        for (const auto& [tid, now] : read_wanted(pid)) {
            const auto found = wanted[pid].find(tid);
            if (found == wanted[pid].end()) continue;
            const double share = std::min(1.0, ns(now - found->second) / passed);
            if (share < kNeverRests) continue;
            const auto stat = read_stat(fmt::format("/proc/{}/task/{}/stat", pid, tid));
            if (stat) busy.push_back({pid, tid, stat->name, share});
        }
    return busy;
}

std::vector<std::string> busy_warnings(std::vector<BusyThread> threads) {
    std::stable_sort(threads.begin(), threads.end(),
                     [](const auto& a, const auto& b) { return a.share > b.share; });
    std::vector<std::string> warnings;
    for (const BusyThread& thread : threads) {
        if (warnings.size() == kMostTold) break;
        warnings.push_back(fmt::format(
            "thread {} of process {} ({}), which is not slowed, wanted a CPU for {:.0f}% of the "
            "time before any delay: if it makes the service's load, it is the bottleneck until "
            "delays are long, and small ones tell of it and not of the service",
            thread.tid, thread.pid, thread.name, 100 * thread.share));
    }
    return warnings;
}

} // namespace speedbump::experiment
