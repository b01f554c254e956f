// SPDX-License-Identifier: MIT
#include "process/threads.h"

#include <dirent.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "util/proc.h"

namespace speedbump::process {

// Not by std::filesystem: its iterator throws when the process ends between two entries.
std::vector<pid_t> read_threads(pid_t pid) {
    std::vector<pid_t> threads;
    DIR* directory = ::opendir(("/proc/" + std::to_string(pid) + "/task").c_str());
    if (!directory) return threads;
    while (const dirent* entry = ::readdir(directory))
        if (entry->d_name[0] != '.') threads.push_back(std::atoi(entry->d_name));
    ::closedir(directory);
    std::sort(threads.begin(), threads.end());
    return threads;
}

std::optional<ThreadTimes> read_thread_times(pid_t pid, pid_t tid) {
    const std::string task = std::to_string(pid) + "/task/" + std::to_string(tid);
    int64_t ran = 0, waited = 0;
    if (std::sscanf(read_proc("/proc/" + task + "/schedstat").c_str(), "%" SCNd64 " %" SCNd64, &ran,
                    &waited) != 2)
        return std::nullopt;
    return ThreadTimes{std::chrono::nanoseconds(ran), std::chrono::nanoseconds(waited)};
}

ThreadTimes read_all_thread_times(pid_t pid) {
    ThreadTimes sum;
    for (const pid_t tid : read_threads(pid)) {
        const ThreadTimes one = read_thread_times(pid, tid).value_or(ThreadTimes{});
        sum.ran += one.ran;
        sum.waited += one.waited;
    }
    return sum;
}

} // namespace speedbump::process
