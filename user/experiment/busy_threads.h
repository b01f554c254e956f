// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

// What makes a service's load sets its pace once it has no time left: what the service's delays do
// is then done to it in part.
namespace speedbump::experiment {

// What all processes of this host had used of the CPUs at one time.
struct ProcessTimes {
    uint64_t at_ns = 0;
    std::map<pid_t, double> seconds;
};
ProcessTimes read_process_times();

struct BusyThread {
    pid_t pid = 0;
    pid_t tid = 0;
    std::string name;
    double share = 0; // of the time in which it ran or waited for a CPU
};

// The threads that do not rest, of processes that have used a CPU since `before` and are neither
// among `tree` nor this one. Looks at them for `look`, but only where there are such processes.
std::vector<BusyThread> find_busy_threads(const ProcessTimes& before,
                                          const std::vector<pid_t>& tree,
                                          std::chrono::nanoseconds look);

// A sentence for each, the busiest first, and no more than a few.
std::vector<std::string> busy_warnings(std::vector<BusyThread> threads);

} // namespace speedbump::experiment
