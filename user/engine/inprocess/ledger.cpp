// SPDX-License-Identifier: MIT
#include "engine/inprocess/ledger.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

#include "process/memory.h"

namespace speedbump::engine::inprocess {

constexpr size_t kMaxEntries = 1u << 20;

struct Ledger::Page {
    uint64_t count;
    Entry entries[kMaxEntries]; // pages that nobody writes cost nothing
};

Result<std::unique_ptr<Ledger>> Ledger::create() {
    void* memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return errno_error("map the list of jumps", errno);
    return std::unique_ptr<Ledger>(new Ledger(static_cast<Page*>(memory)));
}

Ledger::~Ledger() {
    munmap(page_, sizeof(Page));
}

Result<size_t> Ledger::add(std::span<const Entry> entries) {
    const auto room = std::find_if(free_.begin(), free_.end(),
                                   [&](const auto& hole) { return hole.second >= entries.size(); });
    size_t first = page_->count;
    if (room != free_.end()) {
        first = room->first;
        room->first += entries.size();
        room->second -= entries.size();
    } else if (first + entries.size() > kMaxEntries) {
        return make_error(ErrorKind::kUnsupported,
                          fmt::format("no more than {} jumps can be in place", kMaxEntries));
    }
    std::copy(entries.begin(), entries.end(), page_->entries + first);
    const uint64_t count = std::max<uint64_t>(page_->count, first + entries.size());
    __atomic_store_n(&page_->count, count, __ATOMIC_RELEASE);
    return first;
}

void Ledger::forget(size_t first, size_t count) {
    for (size_t i = first; i < first + count; ++i) page_->entries[i].region = 0;
    if (count > 0) free_.emplace_back(first, count);
}

std::vector<Entry> Ledger::entries() const {
    return entries(0, __atomic_load_n(&page_->count, __ATOMIC_ACQUIRE));
}

std::vector<Entry> Ledger::entries(size_t first, size_t count) const {
    std::vector<Entry> all;
    for (size_t i = first; i < first + count; ++i)
        if (page_->entries[i].region != 0) all.push_back(page_->entries[i]);
    return all;
}

namespace {

bool maps(pid_t pid, const std::string& inode) {
    std::ifstream lines(fmt::format("/proc/{}/maps", pid));
    for (std::string line; std::getline(lines, line);) {
        const size_t name = line.find("/memfd:speedbump-hooks");
        if (name == std::string::npos) continue;
        if (line.rfind(" " + inode + " ", name) != std::string::npos) return true;
    }
    return false;
}

} // namespace

std::vector<pid_t> processes_with(ino_t table) {
    const std::string inode = std::to_string(table);
    std::vector<pid_t> found;
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir("/proc"), closedir);
    if (!directory) return found;
    while (const dirent* entry = readdir(directory.get())) {
        const auto pid = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
        if (pid > 0 && pid != getpid() && maps(pid, inode)) found.push_back(pid);
    }
    return found;
}

Result<void> take_out(pid_t pid, const std::vector<Entry>& entries, Clock::time_point deadline,
                      inject::Quiet* quiet) {
    std::map<std::pair<uint64_t, Identity>, std::vector<inject::CodeChange>> regions;
    for (const Entry& entry : entries)
        regions[{entry.region, entry.identity}].push_back(
            {.address = entry.site, .before = entry.jump, .after = entry.before});
    Result<void> result;
    const process::RemoteMemory memory(pid);
    for (auto& [region, changes] : regions) {
        const inject::Witness witness{region.first, region.second};
        Identity there{};
        if (memory.read_some(region.first, there.data(), there.size()) != there.size() ||
            there != region.second)
            continue; // another process's
        auto done = inject::change_code(pid, witness, changes, quiet, deadline);
        for (const inject::CodeChange& change : changes)
            if (done && change.outcome == inject::CodeChange::Outcome::kRefused)
                done = errno_error(fmt::format("process {}: restore its code", pid),
                                   change.error_number);
        if (!done && done.error().kind != ErrorKind::kNotFound && result) result = std::move(done);
    }
    return result;
}

} // namespace speedbump::engine::inprocess
