// SPDX-License-Identifier: MIT
#include "process/namespaces.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "util/proc.h"

namespace speedbump::process {
namespace {

uint32_t namespace_at(const std::string& path) {
    struct stat status {};
    return stat(path.c_str(), &status) == 0 ? static_cast<uint32_t>(status.st_ino) : 0;
}

} // namespace

uint32_t pid_namespace_of(pid_t pid) {
    return namespace_at(fmt::format("/proc/{}/ns/pid", pid));
}

int64_t monotonic_offset_of(pid_t pid) {
    std::ifstream offsets(fmt::format("/proc/{}/timens_offsets", pid));
    std::string clock;
    int64_t seconds = 0, nanoseconds = 0;
    while (offsets >> clock >> seconds >> nanoseconds)
        if (clock == "monotonic") return seconds * 1'000'000'000 + nanoseconds;
    return 0;
}

bool has_clock_for_children(pid_t pid) {
    return namespace_at(fmt::format("/proc/{}/ns/time", pid)) !=
           namespace_at(fmt::format("/proc/{}/ns/time_for_children", pid));
}

PidNames::PidNames() : own_namespace_(namespace_at("/proc/self/ns/pid")) {}

void PidNames::note(pid_t pid) {
    const uint32_t pid_namespace = pid_namespace_of(pid);
    if (pid_namespace == 0 || pid_namespace == own_namespace_) return;
    const std::pair name(pid_namespace,
                         innermost_id(read_proc(fmt::format("/proc/{}/status", pid))));
    known_[name] = pid;
    unknown_.erase(name);
}

pid_t PidNames::here(uint32_t pid_namespace, pid_t pid) {
    if (pid_namespace == own_namespace_) return pid;
    const std::pair name(pid_namespace, pid);
    if (const auto known = known_.find(name); known != known_.end()) return known->second;
    if (!unknown_.insert(name).second) return 0;
    for (const pid_t number : list_pids()) note(number);
    const auto found = known_.find(name);
    return found != known_.end() ? found->second : 0;
}

} // namespace speedbump::process
