// SPDX-License-Identifier: MIT
#include "experiment/host.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "process/threads.h"
#include "util/proc.h"

namespace speedbump::experiment {

namespace {

constexpr double kSaturated = 0.95;  // of all CPUs
constexpr double kIdleService = 0.3; // of one CPU

std::string first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

// The cgroup (v2) of a process, as a path below the mount; empty when it has none.
std::string cgroup_of(pid_t pid) {
    std::ifstream file(fmt::format("/proc/{}/cgroup", pid));
    std::string line;
    while (std::getline(file, line))
        if (line.starts_with("0::")) return line.substr(3);
    return "";
}

double seconds(const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

} // namespace

std::vector<std::string> host_warnings(const std::vector<pid_t>& pids) {
    std::vector<std::string> warnings;
    std::set<std::string> limited;
    for (const pid_t pid : pids) {
        for (std::string path = cgroup_of(pid); path.size() > 1;
             path = path.substr(0, path.rfind('/'))) {
            const std::string limit = first_line("/sys/fs/cgroup" + path + "/cpu.max");
            if (!limit.empty() && !limit.starts_with("max") && limited.insert(path).second)
                warnings.push_back(fmt::format(
                    "cgroup {} has a CPU quota ({}): delays use it up, which slows more than they "
                    "do themselves",
                    path, limit));
        }
    }
    const std::string governor =
        first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    if (!governor.empty() && governor != "performance")
        warnings.push_back("the frequency governor is '" + governor +
                           "': spinning raises the clock; 'performance' keeps it");
    if (first_line("/sys/devices/system/cpu/smt/active") == "1")
        warnings.push_back("SMT is on: a delay that spins slows the sibling CPU as well");
    const std::string clock =
        first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    const std::set<std::string> good = {"", "tsc", "kvm-clock", "arch_sys_counter",
                                        "hyperv_clocksource_tsc_page"};
    if (!good.contains(clock))
        warnings.push_back("the clock source is '" + clock + "', which is slow to read");
    return warnings;
}

CpuTimes read_cpu_times(const std::vector<pid_t>& pids) {
    const double tick = 1.0 / static_cast<double>(::sysconf(_SC_CLK_TCK));
    CpuTimes times;
    for (const pid_t pid : pids) {
        const auto stat = read_stat(fmt::format("/proc/{}/stat", pid));
        if (!stat) continue;
        constexpr size_t kUser = 14, kSystem = 15; // fields
        times.processes += static_cast<double>(stat->field(kUser) + stat->field(kSystem)) * tick;
    }
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    times.own = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    std::istringstream fields(first_line("/proc/stat"));
    std::string name;
    fields >> name;
    double value = 0;
    for (int field = 0; field < 8 && fields >> value; ++field) {
        times.total += value * tick;
        if (field != 3 && field != 4) times.busy += value * tick; // idle, waiting for I/O
    }
    return times;
}

std::map<pid_t, std::chrono::nanoseconds> read_waits(const std::vector<pid_t>& pids) {
    std::map<pid_t, std::chrono::nanoseconds> waits;
    for (const pid_t pid : pids) {
        for (const pid_t thread : process::read_threads(pid)) {
            if (const auto times = process::read_thread_times(pid, thread))
                waits[thread] = times->waited;
        }
    }
    return waits;
}

std::chrono::nanoseconds waited_between(const std::map<pid_t, std::chrono::nanoseconds>& before,
                                        const std::map<pid_t, std::chrono::nanoseconds>& after) {
    std::chrono::nanoseconds sum{0};
    for (const auto& [thread, waited] : after) {
        const auto found = before.find(thread);
        sum += found == before.end() ? waited : waited - found->second;
    }
    return sum;
}

std::vector<std::string> load_warnings(const CpuTimes& before, const CpuTimes& after) {
    std::vector<std::string> warnings;
    const double total = after.total - before.total;
    const double cpus = static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN));
    if (total <= 0) return warnings;
    const double busy = (after.busy - before.busy) / total;
    const double service = (after.processes - before.processes) / total * cpus;
    if (busy > kSaturated)
        warnings.push_back(fmt::format(
            "all CPUs were {:.0f}% busy: the service competes for them with other load or with "
            "what generates its load",
            busy * 100));
    if (service < kIdleService)
        warnings.push_back(fmt::format(
            "the processes used {:.2f} CPUs: if their load is too small to keep them busy, it sets "
            "the pace and nothing in them matters",
            service));
    return warnings;
}

} // namespace speedbump::experiment
