// SPDX-License-Identifier: MIT
#include "session/outsiders.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include "util/clock.h"

namespace speedbump::session {

namespace {

process::FileKey exact_key(const process::Mapping& mapping) {
    return {mapping.device, mapping.inode};
}

process::FileKey key_below(const process::Mapping& mapping) {
    return {0, static_cast<uint32_t>(mapping.inode)};
}

} // namespace

bool is_of(const process::Mapping& mapping, const process::FileKey& wanted) {
    return exact_key(mapping) == wanted || key_below(mapping) == wanted;
}

std::set<process::FileKey> mapped_of(pid_t pid, const std::set<process::FileKey>& files) {
    std::set<process::FileKey> found;
    const auto mappings = process::read_maps(pid);
    if (!mappings) return found; // it is gone
    for (const process::Mapping& mapping : *mappings) {
        if (!mapping.executable) continue;
        for (const process::FileKey& key : {exact_key(mapping), key_below(mapping)})
            if (files.contains(key)) found.insert(key);
    }
    return found;
}

bool runs_this_program(pid_t pid) {
    struct stat own = {}, other = {};
    return stat("/proc/self/exe", &own) == 0 &&
           stat(fmt::format("/proc/{}/exe", pid).c_str(), &other) == 0 &&
           own.st_dev == other.st_dev && own.st_ino == other.st_ino;
}

void OutsiderScan::advance(std::chrono::microseconds budget) {
    const auto deadline = Clock::now() + budget;
    while (running() && Clock::now() < deadline)
        shared_.merge(mapped_of(outsiders_[next_++], files_));
}

} // namespace speedbump::session
