// SPDX-License-Identifier: MIT
#include "fleet/found.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "util/proc.h"

namespace speedbump::fleet {

namespace {

constexpr std::string_view kJob = "SLURM_JOB_ID=";
constexpr int kMostParents = 100;

std::string_view job_in(std::string_view environment) {
    for (size_t at = 0; at < environment.size();) {
        const size_t end = std::min(environment.find('\0', at), environment.size());
        const std::string_view one = environment.substr(at, end - at);
        if (one.starts_with(kJob)) return one.substr(kJob.size());
        at = end + 1;
    }
    return {};
}

// By its environment as it was started with, or where it has written a title over that, by its
// parent's. Empty: of none.
std::string job_of(pid_t pid) {
    for (int i = 0; pid > 1 && i < kMostParents; ++i, pid = parent_of(pid)) {
        const std::string environment = read_proc("/proc/" + std::to_string(pid) + "/environ");
        if (const std::string_view job = job_in(environment); !job.empty()) return std::string(job);
    }
    return {};
}

} // namespace

Result<std::vector<pid_t>> find_by_exe(const std::string& name) {
    constexpr std::string_view kDeleted = " (deleted)";
    std::vector<pid_t> found;
    const char* variable = std::getenv("SLURM_JOB_ID");
    const std::string job = variable == nullptr ? "" : variable;
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
        if (path != name && path.substr(path.rfind('/') + 1) != name) continue;
        if (job.empty() || job_of(pid) == job) found.push_back(pid);
    }
    if (problem) return errno_error("look through /proc", problem.value());
    if (found.empty())
        return make_error(
                   ErrorKind::kNotFound,
                   (job.empty() ? "no process here" : "no process of Slurm job " + job + " here") +
                       " has the executable '" + name + "'")
            .with_hint("--exe takes the name of the program's file, as in /proc/PID/exe");
    std::sort(found.begin(), found.end());
    return found;
}

} // namespace speedbump::fleet
