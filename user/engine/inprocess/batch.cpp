// SPDX-License-Identifier: MIT
#include "engine/inprocess/batch.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "elf/moved_code.h"
#include "engine/inprocess/region.h"
#include "engine/inprocess/vdso.h"
#include "engine/shared_memory.h"
#include "inject/mapper.h"
#include "inject/process_state.h"
#include "inject/write_code.h"
#include "process/maps.h"
#include "process/memory.h"

namespace speedbump::engine::inprocess {
namespace {

using std::chrono::milliseconds;
using Outcome = inject::CodeChange::Outcome;

constexpr milliseconds kMapTimeout{5000};
constexpr milliseconds kChangeTimeout{10000};
constexpr size_t kMoreCallers = 64, kMostCallers = 1 << 16;
constexpr int kMapTries = 3; // where something else is mapped at the chosen place meanwhile

using Bytes = std::basic_string_view<unsigned char>;

bool is_same_file(pid_t pid, const process::Mapping& mapping, const struct stat& wanted) {
    if (mapping.inode != wanted.st_ino) return false;
    const auto file = process::open_mapped_file(pid, mapping);
    struct stat info {};
    return file && fstat(file->get(), &info) == 0 && info.st_dev == wanted.st_dev &&
           info.st_ino == wanted.st_ino;
}

// Where the file's code lies in the process.
Result<std::vector<Span>> code_of(pid_t pid, int file) {
    struct stat wanted {};
    if (fstat(file, &wanted) != 0) return errno_error("stat a file to probe", errno);
    auto mappings = process::read_maps(pid);
    if (!mappings) return std::move(mappings).error();
    const std::vector<Span> all = read_spans(pid);
    std::vector<Span> found;
    for (const process::Mapping& mapping : *mappings) {
        if (!mapping.executable || !is_same_file(pid, mapping, wanted)) continue;
        const auto span = std::find_if(all.begin(), all.end(), [&](const Span& one) {
            return one.start == mapping.start && one.end == mapping.end;
        });
        if (span == all.end()) continue; // it changes just now
        found.push_back(*span);
    }
    if (found.empty())
        return make_error(ErrorKind::kNotFound,
                          fmt::format("process {} does not have the file mapped", pid));
    return found;
}

// Why nothing is put into this mapping, or nullptr.
const char* unfit(const Span& span) {
    if (span.shared)
        return "its code is mapped as shared memory, where a change would reach the file";
    if (span.writable) return "its code is mapped writable";
    return nullptr;
}

Result<Site> find_site(pid_t pid, int file, const std::vector<Span>& code, const Probe& probe) {
    const uint64_t offset = probe.file_offset;
    const Span* place = nullptr;
    for (const Span& span : code) {
        if (offset < span.offset || offset - span.offset >= span.end - span.start) continue;
        if (place != nullptr)
            return make_error(ErrorKind::kUnsupported, "the process has its code mapped twice");
        place = &span;
    }
    if (place == nullptr)
        return make_error(ErrorKind::kUnsupported, "its code is not mapped as the file has it");
    if (const char* reason = unfit(*place)) return make_error(ErrorKind::kUnsupported, reason);
    Site site;
    site.probe = probe;
    site.address = place->start + (offset - place->offset);
    site.device = place->device;
    site.inode = place->inode;
    unsigned char there[elf::kLongestRange] = {};
    unsigned char expected[elf::kRangeSight] = {};
    const size_t size = process::RemoteMemory(pid).read_some(site.address, there, sizeof there);
    const ssize_t read = pread(file, expected, sizeof expected, static_cast<off_t>(offset));
    const Bytes known(expected, static_cast<size_t>(std::max<ssize_t>(read, 0)));
    const auto range = elf::movable_range(known, site.address);
    if (!range) return make_error(ErrorKind::kUnsupported, "its instructions can't be moved");
    if (size < range->length || Bytes(there, range->length) != Bytes(expected, range->length))
        return make_error(ErrorKind::kUnsupported,
                          "its code is not what the file has: somebody else's breakpoint or hook "
                          "is there");
    site.code = known;
    site.range = *range;
    return site;
}

} // namespace

Result<std::vector<Site>> find_sites(pid_t pid, const FileProbes& probes,
                                     std::vector<RefusedProbe>& refused) {
    const auto code = code_of(pid, probes.file);
    if (!code) return code.error();
    std::vector<Site> sites;
    for (const Probe& probe : probes.probes) {
        auto site = find_site(pid, probes.file, *code, probe);
        if (site)
            sites.push_back(std::move(*site));
        else
            refused.push_back({probe, EOPNOTSUPP, site.error().message});
    }
    return sites;
}

// --- memory in the process

Result<std::shared_ptr<Batch>> Batch::prepare(const inject::Turn& turn, std::vector<Site> sites,
                                              const Table& table,
                                              const std::vector<process::AddressRanges>& callers,
                                              Ledger& ledger, std::vector<RefusedProbe>& refused) {
    const pid_t pid = turn.pid();
    if (auto reason = inject::obstacle(pid)) return std::move(*reason);
    const auto clock = clock_of(pid, table.clock_source());
    if (!clock) return clock.error();
    std::shared_ptr<Batch> batch(new Batch());
    batch->clock_ = *clock;
    batch->pid_ = pid;
    batch->sites_ = std::move(sites);
    if (getrandom(batch->identity_.data(), batch->identity_.size(), 0) !=
        static_cast<ssize_t>(batch->identity_.size()))
        return errno_error("getrandom", errno);
    CallerTables tables{static_cast<uint32_t>(callers.size()), 0};
    for (const process::AddressRanges& ranges : callers) {
        const size_t room = 2 * ranges.size() + kMoreCallers; // what is mapped later has some, too
        tables.capacity =
            std::max(tables.capacity, static_cast<uint32_t>(std::min(room, kMostCallers)));
    }
    // Of the program that it is now: should it exec another one this leads nowhere.
    const auto opened = process::open_memory(pid);
    if (!opened) return opened.error();
    const Fd& memory = *opened;
    if (auto mapped = batch->map(turn, table, tables, ledger); !mapped)
        return std::move(mapped).error();
    std::vector<Site> reachable;
    size_t slot = 0;
    for (Site& site : batch->sites_) {
        auto made = make_trampoline(batch->layout_, slot, site.probe.target, site.address,
                                    site.code, site.filter);
        if (!made) {
            refused.push_back({site.probe, EOPNOTSUPP, made.error().message});
            continue;
        }
        slot += slots_of(site.address, site.code);
        site.trampoline = std::move(*made);
        reachable.push_back(std::move(site));
    }
    batch->sites_ = std::move(reachable);
    batch->is_forgotten_.resize(batch->sites_.size());
    batch->is_refused_.resize(batch->sites_.size());
    auto filled = batch->fill(memory);
    for (size_t i = 0; i < callers.size() && filled; ++i)
        filled = batch->set_callers(turn, i, callers[i]);
    if (filled) return batch;
    char byte = 0;
    if (pread(memory.get(), &byte, 1, static_cast<off_t>(batch->layout_.code)) == 1)
        (void)batch->unmap(turn); // else it lies there and does nothing
    batch->forget(ledger);
    return std::move(filled).error();
}

Batch::~Batch() {
    if (counts_ != nullptr)
        munmap(const_cast<std::byte*>(counts_), layout_.common - layout_.counts);
}

Result<void> Batch::map(const inject::Turn& turn, const Table& table, const CallerTables& callers,
                        Ledger& ledger) {
    const auto [low, high] =
        std::minmax_element(sites_.begin(), sites_.end(),
                            [](const Site& a, const Site& b) { return a.address < b.address; });
    size_t slots = 0;
    for (const Site& site : sites_) slots += slots_of(site.address, site.code);
    const Layout shape(0, slots, table.extent(), callers);
    auto memory = make_shared_memory("speedbump-counts", shape.common - shape.counts, PROT_READ, 0,
                                     counts_fd_);
    if (!memory) return std::move(memory).error();
    counts_ = static_cast<const std::byte*>(*memory);
    layout_ = shape;
    for (int i = 1;; ++i) {
        const std::vector<Span> spans = read_spans(pid_);
        if (spans.empty()) return errno_error(fmt::format("process {}", pid_), ESRCH); // it ended
        const auto place = free_place(spans, low->address, high->address, shape.end);
        if (!place)
            return make_error(ErrorKind::kUnsupported,
                              fmt::format("process {}: {} bytes are free nowhere within reach of "
                                          "its code",
                                          pid_, shape.end));
        layout_ = Layout(*place, slots, table.extent(), callers);
        const std::vector<inject::MapOrder> orders = {
            {layout_.code, layout_.settings - layout_.code, PROT_READ | PROT_EXEC, inject::kPrivate,
             0, 0},
            {layout_.settings, layout_.process - layout_.settings, PROT_READ, 0, 0, 0},
            {layout_.process, layout_.counts - layout_.process, PROT_READ, inject::kPrivate, 1, 0},
            {layout_.counts, layout_.common - layout_.counts, PROT_READ | PROT_WRITE, 1, 0, 0},
            {layout_.common, layout_.end - layout_.common, PROT_READ | PROT_WRITE, 2, 0, 0}};
        auto noted = ledger.add(this->place());
        if (!noted) return std::move(noted).error();
        place_ = *noted;
        auto mapped =
            inject::map_memory(turn, orders, {table.fd(), counts_fd_.get(), table.common_fd()},
                               Clock::now() + kMapTimeout);
        if (mapped) {
            ledger.set_mapped(*place_);
            return mapped;
        }
        ledger.forget(*std::exchange(place_, std::nullopt));
        if (mapped.error().error_number != EEXIST || i == kMapTries) return mapped;
    }
}

Result<void> Batch::fill(const Fd& memory) {
    std::string code = region_head(layout_, identity_, clock_);
    if (code.empty()) return make_error(ErrorKind::kUnsupported, "the hook is too long");
    for (const Site& site : sites_) code += site.trampoline.bytes;
    code.resize(layout_.callers - layout_.code, '\xcc');
    for (const Site& site : sites_)
        std::memcpy(code.data() + (layout_.hook_site(site.trampoline.slot) - layout_.code),
                    &site.trampoline.hook_site, sizeof(HookSite));
    for (uint32_t i = 0; i < layout_.tables.count; ++i) {
        const HookCallers none{0, layout_.tables.capacity, {}};
        code.resize(layout_.callers_of(i) - layout_.code, '\xcc');
        code.append(reinterpret_cast<const char*>(&none), sizeof none);
    }
    const ProcessWord known = kOwnCounts;
    auto written = inject::write_code(pid_, memory, layout_.code, code.data(), code.size());
    if (written) written = inject::write_code(pid_, memory, layout_.process, &known, sizeof known);
    if (!written) return written;
    std::string there(code.size(), '\0');
    if (pread(memory.get(), there.data(), there.size(), static_cast<off_t>(layout_.code)) !=
            static_cast<ssize_t>(there.size()) ||
        there != code)
        return make_error(ErrorKind::kIo,
                          fmt::format("process {}: what was written there is not there", pid_));
    return {};
}

Result<void> Batch::set_callers(const inject::Turn& turn, size_t table,
                                const process::AddressRanges& ranges) const {
    const pid_t pid = turn.pid();
    const uint32_t capacity = layout_.tables.capacity;
    if (ranges.size() > capacity)
        return make_error(ErrorKind::kUnsupported,
                          fmt::format("caller= names {} functions, and there is room for {}",
                                      ranges.size(), capacity));
    const uint64_t at = layout_.callers_of(table);
    const std::string who = fmt::format("process {}", pid);
    const auto opened = process::open_memory(pid);
    if (!opened) return opened.error();
    const Fd& memory = *opened;
    // Read as it is written: it may run another program by now.
    const auto get = [&](uint64_t where, void* data, size_t size) {
        return pread(memory.get(), data, size, static_cast<off_t>(where)) ==
               static_cast<ssize_t>(size);
    };
    HookCallers there{};
    Identity found{};
    if (!get(layout_.code, found.data(), found.size()) || found != identity_ ||
        !get(at, &there, sizeof there))
        return errno_error(who, ESRCH);
    const uint32_t half = (there.holds & 1) ^ 1;
    static_assert(sizeof(HookRange) == sizeof(process::AddressRange));
    const auto count = static_cast<uint32_t>(ranges.size());
    auto written = inject::write_code(
        pid, memory, at + sizeof there + uint64_t{half} * capacity * sizeof(HookRange),
        ranges.data(), ranges.size() * sizeof(HookRange));
    if (written)
        written = inject::write_code(pid, memory,
                                     at + offsetof(HookCallers, counts) + half * sizeof count,
                                     &count, sizeof count);
    if (written)
        written =
            inject::write_code(pid, memory, at + offsetof(HookCallers, holds), &half, sizeof half);
    return written;
}

// --- jumps

Entry Batch::entry_of(const Site& site) const {
    Entry entry;
    entry.region = layout_.code;
    entry.identity = identity_;
    entry.site = site.address;
    entry.device = site.device;
    entry.inode = site.inode;
    entry.jump = site.trampoline.jump;
    std::copy_n(site.code.begin(), entry.before.size(), entry.before.begin());
    return entry;
}

std::vector<Entry> Batch::entries() const {
    std::vector<Entry> all;
    for (size_t i = 0; i < sites_.size(); ++i)
        if (!is_refused_[i]) all.push_back(entry_of(sites_[i]));
    return all;
}

Result<void> Batch::put_in(const inject::Turn& turn, Ledger& ledger,
                           std::vector<RefusedProbe>& refused) {
    const std::vector<Entry> listed = entries();
    auto first = ledger.add(listed);
    if (!first) return std::move(first).error();
    listed_ = *first;
    std::vector<inject::CodeChange> changes;
    for (size_t i = 0; i < sites_.size(); ++i) {
        const Site& site = sites_[i];
        inject::CodeChange change{
            .address = site.address, .before = listed[i].before, .after = listed[i].jump};
        change.whole = site.code.substr(0, site.range.length);
        change.length = site.range.length;
        for (size_t k = 0; k < site.range.places.size(); ++k)
            change.moved[site.range.places[k]] = site.trampoline.copy + site.trampoline.places[k];
        changes.push_back(change);
    }
    auto changed = inject::change_code(turn, {layout_.code, identity_}, changes, nullptr,
                                       Clock::now() + kChangeTimeout);
    if (!changed) return changed;
    for (size_t i = 0; i < changes.size(); ++i) {
        if (changes[i].outcome == Outcome::kDone) continue;
        const bool is_refused = changes[i].outcome == Outcome::kRefused;
        refused.push_back({sites_[i].probe, changes[i].error_number,
                           is_refused ? "its code can't be written to"
                                      : "its code has changed meanwhile: somebody else is at it"});
        if (is_refused) continue; // what is there now is not known
        is_refused_[i] = true;
        ledger.strike(*listed_ + i);
    }
    return {};
}

void Batch::forget(Ledger& ledger) {
    if (listed_) ledger.forget(*listed_, sites_.size());
    if (place_) ledger.forget(*place_);
    listed_.reset();
    place_.reset();
}

bool Batch::is_in(pid_t pid) const {
    const auto known = has_region(pid, layout_.code, identity_);
    return known && *known;
}

bool Batch::may_be_in(pid_t pid) const {
    const auto known = has_region(pid, layout_.code, identity_);
    return !known || *known;
}

bool Batch::has_clock_of(pid_t pid) const {
    if (clock_.address == 0) return true;
    const auto clock = vdso_clock_of(pid);
    return clock && *clock == clock_;
}

bool Batch::has_jump(pid_t pid, const Probe& probe) const {
    const auto site = std::find_if(sites_.begin(), sites_.end(), [&](const Site& one) {
        return one.probe.target == probe.target && one.probe.file_offset == probe.file_offset;
    });
    if (site == sites_.end()) return false;
    const auto& jump = site->trampoline.jump;
    std::remove_cvref_t<decltype(jump)> there{};
    return process::RemoteMemory(pid).read_some(site->address, there.data(), there.size()) ==
               there.size() &&
           there == jump;
}

// --- counts

template <typename T>
const T* Batch::counted(uint64_t address) const {
    return reinterpret_cast<const T*>(counts_ + (address - layout_.counts));
}

void Batch::add_counts(std::vector<Counts>& to, const Ticks& ticks) const {
    const auto load = [](const uint64_t& value) {
        return __atomic_load_n(&value, __ATOMIC_RELAXED);
    };
    const auto time_of = [](uint64_t ns) {
        return nanoseconds(static_cast<int64_t>(std::min(ns, uint64_t{1} << 55)));
    };
    for (size_t i = 0; i < sites_.size(); ++i) {
        const size_t slot = sites_[i].trampoline.slot;
        for (const uint64_t is_own : {uint64_t{0}, kOwnCounts}) {
            if (is_own != 0 && is_forgotten_[i]) continue;
            Counts sum{.target = sites_[i].probe.target,
                       .process = is_own != 0 ? static_cast<pid_t>(tgid) : 0};
            for (uint64_t stripe = 0; stripe < kStripes; ++stripe) {
                const uint64_t number = is_own * kStripes + stripe;
                const auto& delays = *counted<HookDelays>(layout_.delays_of(slot, number));
                sum += {.hits = load(*counted<uint64_t>(layout_.hits_of(slot, number))),
                        .delays = load(delays.delays),
                        .requested = time_of(load(delays.requested_ns)),
                        .measured = ticks.duration(load(delays.measured_ticks))};
            }
            if (sum.hits != 0) to.push_back(sum);
        }
    }
}

void Batch::forget_counts(uint32_t target) {
    for (size_t i = 0; i < sites_.size(); ++i)
        if (sites_[i].probe.target == target) is_forgotten_[i] = true;
}

} // namespace speedbump::engine::inprocess
