// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace speedbump::experiment {

// What of this host spoils such measurements, each a sentence: a CPU quota on a cgroup of one of
// the processes, the frequency governor, SMT, a slow clock.
std::vector<std::string> host_warnings(const std::vector<pid_t>& pids);

// CPU time so far, in seconds.
struct CpuTimes {
    double processes = 0; // of the processes named
    double own = 0;       // of this program
    double busy = 0;      // of all CPUs
    double total = 0;     // busy and idle
};
CpuTimes read_cpu_times(const std::vector<pid_t>& pids);

// How long each thread of the processes, by its id, has been able to run and had no CPU
// (/proc/PID/task/TID/schedstat).
std::map<pid_t, std::chrono::nanoseconds> read_waits(const std::vector<pid_t>& pids);
// By how much that has grown. Threads that have ended are not known any more.
std::chrono::nanoseconds waited_between(const std::map<pid_t, std::chrono::nanoseconds>& before,
                                        const std::map<pid_t, std::chrono::nanoseconds>& after);

// What the use of the CPUs between two readings warns of.
std::vector<std::string> load_warnings(const CpuTimes& before, const CpuTimes& after);

} // namespace speedbump::experiment
