// SPDX-License-Identifier: MIT
#include "process/threads.h"

#include <dirent.h>

#include <algorithm>
#include <cstdlib>
#include <string>

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

} // namespace speedbump::process
