// SPDX-License-Identifier: MIT
#include "engine/inprocess/ledger.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

#include "inject/left_stub.h"
#include "inject/mapper.h"
#include "process/memory.h"
#include "util/fd.h"
#include "util/proc.h"

namespace speedbump::engine::inprocess {

constexpr size_t kMaxEntries = 1u << 20;
constexpr size_t kMaxPlaces = 1u << 16;
constexpr std::chrono::milliseconds kUnmapTimeout{1000}, kClearTimeout{2000};

struct Ledger::Page {
    uint64_t count;
    uint64_t place_count;
    Place places[kMaxPlaces];
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
    const std::lock_guard lock(mutex_);
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
    const std::lock_guard lock(mutex_);
    for (size_t i = first; i < first + count; ++i) page_->entries[i].region = 0;
    if (count > 0) free_.emplace_back(first, count);
}

Result<size_t> Ledger::add(const Place& place) {
    const std::lock_guard lock(mutex_);
    size_t index = page_->place_count;
    if (!free_places_.empty()) {
        index = free_places_.back();
        free_places_.pop_back();
    } else if (index == kMaxPlaces) {
        return make_error(ErrorKind::kUnsupported,
                          fmt::format("no more than {} regions can be there", kMaxPlaces));
    }
    page_->places[index] = place;
    const uint64_t count = std::max<uint64_t>(page_->place_count, index + 1);
    __atomic_store_n(&page_->place_count, count, __ATOMIC_RELEASE);
    return index;
}

void Ledger::set_mapped(size_t place) {
    __atomic_store_n(&page_->places[place].is_mapped, true, __ATOMIC_RELEASE);
}

void Ledger::forget(size_t place) {
    const std::lock_guard lock(mutex_);
    __atomic_store_n(&page_->places[place].pid, 0, __ATOMIC_RELEASE);
    free_places_.push_back(place);
}

std::vector<Place> Ledger::places() const {
    std::vector<Place> all;
    const uint64_t count = __atomic_load_n(&page_->place_count, __ATOMIC_ACQUIRE);
    for (size_t i = 0; i < count; ++i)
        if (page_->places[i].pid != 0) all.push_back(page_->places[i]);
    return all;
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

// Where a process has this table mapped.
std::vector<uint64_t> tables_in(pid_t pid, const std::string& inode) {
    std::vector<uint64_t> found;
    std::ifstream lines(fmt::format("/proc/{}/maps", pid));
    for (std::string line; std::getline(lines, line);) {
        const size_t name = line.find("/memfd:speedbump-hooks");
        if (name == std::string::npos) continue;
        if (line.rfind(" " + inode + " ", name) != std::string::npos)
            found.push_back(std::strtoull(line.c_str(), nullptr, 16));
    }
    return found;
}

} // namespace

std::vector<pid_t> processes_with(ino_t table) {
    const std::string inode = std::to_string(table);
    std::vector<pid_t> found;
    for (const pid_t pid : list_pids())
        if (pid != getpid() && !tables_in(pid, inode).empty()) found.push_back(pid);
    return found;
}

Result<void> unmap(pid_t pid, const Place& place) {
    const std::vector<inject::MapOrder> orders = {
        {place.code, place.end - place.code, 0, inject::kUnmap, 0, 0}};
    const Fd unused(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    return inject::map_memory(pid, orders, {unused.get(), unused.get(), unused.get()},
                              Clock::now() + kUnmapTimeout);
}

bool clear_away(pid_t pid, ino_t table, const std::vector<Place>& places) {
    const auto removed = inject::remove_left_stub(pid, Clock::now() + kClearTimeout);
    if (removed ? !*removed : removed.error().kind != ErrorKind::kNotFound) return false;
    bool is_clear = true;
    for (const uint64_t settings : tables_in(pid, std::to_string(table))) {
        // Regions of several processes may lie at the same place; one may not be filled yet.
        const auto place = std::find_if(places.begin(), places.end(), [&](const Place& one) {
            Identity there{};
            return one.settings == settings &&
                   process::RemoteMemory(pid).read_some(one.code, there.data(), there.size()) ==
                       there.size() &&
                   (there == one.identity || (one.pid == pid && there == Identity{}));
        });
        if (place == places.end()) continue;
        inject::Witness witness{place->code, {}};
        const size_t read = process::RemoteMemory(pid).read_some(
            witness.address, witness.bytes.data(), witness.bytes.size());
        if (read != witness.bytes.size()) continue; // it has ended
        inject::Quiet quiet{place->code, place->settings, false};
        const auto looked =
            inject::change_code(pid, witness, {}, &quiet, Clock::now() + kClearTimeout);
        if (!looked || !quiet.is_quiet || !unmap(pid, *place)) is_clear = false;
    }
    return is_clear;
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
