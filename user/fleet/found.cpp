// SPDX-License-Identifier: MIT
#include "fleet/found.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

namespace speedbump::fleet {

Result<std::vector<pid_t>> find_by_exe(const std::string& name) {
    constexpr std::string_view kDeleted = " (deleted)";
    std::vector<pid_t> found;
    std::error_code problem;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", problem)) {
        const std::string folder = entry.path().filename();
        pid_t pid = 0;
        const auto [end, error] =
            std::from_chars(folder.data(), folder.data() + folder.size(), pid);
        if (error != std::errc() || end != folder.data() + folder.size() || pid == ::getpid())
            continue;
        std::error_code gone; // or not ours to see
        std::string path = std::filesystem::read_symlink(entry.path() / "exe", gone).string();
        if (gone) continue;
        if (path.ends_with(kDeleted)) path.resize(path.size() - kDeleted.size());
        if (path == name || path.substr(path.rfind('/') + 1) == name) found.push_back(pid);
    }
    if (problem) return errno_error("look through /proc", problem.value());
    if (found.empty())
        return make_error(ErrorKind::kNotFound, "no process here has the executable '" + name + "'")
            .with_hint("--exe takes the name of the program's file, as in /proc/PID/exe");
    std::sort(found.begin(), found.end());
    return found;
}

} // namespace speedbump::fleet
