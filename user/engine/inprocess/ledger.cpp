// SPDX-License-Identifier: MIT
#include "engine/inprocess/ledger.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <tuple>

#include "engine/inprocess/region.h"
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

namespace {

// By region.
bool is_before(const Entry& a, const Entry& b) {
    return std::tie(a.region, a.identity) < std::tie(b.region, b.identity);
}

} // namespace

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
        const size_t left = room->second - entries.size();
        free_.erase(room);
        if (left > 0) free_.emplace(first + entries.size(), left);
    } else if (first + entries.size() > kMaxEntries) {
        return make_error(ErrorKind::kUnsupported,
                          fmt::format("no more than {} jumps can be in place", kMaxEntries));
    }
    std::copy(entries.begin(), entries.end(), page_->entries + first);
    const uint64_t count = std::max<uint64_t>(page_->count, first + entries.size());
    __atomic_store_n(&page_->count, count, __ATOMIC_RELEASE);
    return first;
}

void Ledger::strike(size_t entry) {
    __atomic_store_n(&page_->entries[entry].region, 0, __ATOMIC_RELEASE);
}

void Ledger::forget(size_t first, size_t count) {
    if (count == 0) return;
    const std::lock_guard lock(mutex_);
    for (size_t i = first; i < first + count; ++i) page_->entries[i].region = 0;
    // Holes side by side are one: batches come and go in all sizes.
    const auto next = free_.upper_bound(first);
    if (next != free_.end() && next->first == first + count) {
        count += next->second;
        free_.erase(next);
    }
    const auto after = free_.upper_bound(first);
    if (after != free_.begin()) {
        const auto before = std::prev(after);
        if (before->first + before->second == first) {
            before->second += count;
            return;
        }
    }
    free_.emplace(first, count);
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
    std::vector<Entry> all;
    const uint64_t count = __atomic_load_n(&page_->count, __ATOMIC_ACQUIRE);
    for (size_t i = 0; i < count; ++i)
        if (page_->entries[i].region != 0) all.push_back(page_->entries[i]);
    std::sort(all.begin(), all.end(), is_before);
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

Result<void> unmap(const inject::Turn& turn, const Place& place) {
    const std::vector<inject::MapOrder> orders = {
        {place.code, place.end - place.code, 0, inject::kUnmap, 0, 0}};
    const Fd unused(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    return inject::map_memory(turn, orders, {unused.get(), unused.get(), unused.get()},
                              Clock::now() + kUnmapTimeout);
}

bool clear_away(const inject::Turn& turn, ino_t table, const std::vector<Place>& places) {
    const pid_t pid = turn.pid();
    const auto removed = inject::remove_left_stub(turn, Clock::now() + kClearTimeout);
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
            inject::change_code(turn, witness, {}, &quiet, Clock::now() + kClearTimeout);
        if (!looked || !quiet.is_quiet || !unmap(turn, *place)) is_clear = false;
    }
    return is_clear;
}

namespace {

bool is_mapped_still(pid_t pid, const Entry& entry) {
    const std::vector<Span> spans = read_spans(pid);
    return std::any_of(spans.begin(), spans.end(), [&](const Span& one) {
        return entry.site >= one.start && entry.site < one.end && one.inode == entry.inode &&
               one.device == entry.device;
    });
}

// Why a jump is still there, or may be again; nothing: it is not.
std::optional<Error> left_in(pid_t pid, const Entry& entry, const inject::CodeChange& change) {
    using Outcome = inject::CodeChange::Outcome;
    const std::string what = fmt::format("process {}: restore its code", pid);
    if (change.outcome == Outcome::kRefused) return errno_error(what, change.error_number);
    if (change.outcome != Outcome::kOtherCode || !is_mapped_still(pid, entry)) return std::nullopt;
    // Whoever has changed it may put back what was there: our jump.
    return make_error(ErrorKind::kIo, fmt::format("{}: somebody else has changed the jump at {:#x}",
                                                  what, entry.site));
}

} // namespace

Result<bool> has_region(pid_t pid, uint64_t region, const Identity& identity) {
    Identity there{};
    const auto read = process::RemoteMemory(pid).read(region, there.data(), there.size());
    if (read) return there == identity;
    const int why = read.error().error_number;
    // One whose first thread alone has ended can't be read by its number either.
    if (why == EFAULT || (why == ESRCH && is_ending(pid))) return false;
    return read.error();
}

Result<void> take_out(const inject::Turn& turn, std::span<const Entry> entries,
                      Clock::time_point deadline, inject::Quiet* quiet) {
    const pid_t pid = turn.pid();
    Result<void> result;
    for (size_t at = 0; at < entries.size();) {
        const auto begin = entries.begin() + static_cast<ptrdiff_t>(at);
        const auto end = std::upper_bound(begin, entries.end(), *begin, is_before);
        const auto same = entries.subspan(at, static_cast<size_t>(end - begin));
        at += same.size();
        const Entry& first = same.front();
        const inject::Witness witness{first.region, first.identity};
        const auto is_its_own = has_region(pid, first.region, first.identity);
        if (!is_its_own && result) result = is_its_own.error();
        if (!is_its_own || !*is_its_own) continue;
        std::vector<inject::CodeChange> changes;
        for (const Entry& entry : same)
            changes.push_back({.address = entry.site, .before = entry.jump, .after = entry.before});
        auto done = inject::change_code(turn, witness, changes, quiet, deadline);
        for (size_t i = 0; i < changes.size() && done; ++i)
            if (auto left = left_in(pid, same[i], changes[i])) done = std::move(*left);
        if (!done && done.error().kind != ErrorKind::kNotFound && result) result = std::move(done);
    }
    return result;
}

} // namespace speedbump::engine::inprocess
