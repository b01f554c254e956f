// SPDX-License-Identifier: MIT
#include "experiment/progress_probes.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "elf/moved_code.h"
#include "process/maps.h"
#include "process/memory.h"
#include "session/outsiders.h"
#include "util/proc.h"

namespace speedbump::experiment {

namespace {

constexpr std::chrono::seconds kTurnTimeout{10};

// Whether the code of a process is not what its file (`wanted` as by FileBelow, `descriptor`) has
// at this offset, but lies where a jump has taken its place (engine/inprocess), this program's or
// another's: a probe there would be in the middle of it.
bool is_in_jump(pid_t pid, const process::FileKey& wanted, int descriptor, uint64_t offset) {
    const auto mappings = process::read_maps(pid);
    if (!mappings) return false; // it has ended
    for (const process::Mapping& mapping : *mappings) {
        if (!mapping.executable || !session::is_of(mapping, wanted) ||
            offset < mapping.file_offset ||
            offset - mapping.file_offset >= mapping.end - mapping.start)
            continue;
        const uint64_t first =
            std::max(mapping.file_offset, offset - std::min(offset, elf::kLongestRange - 1));
        unsigned char is[elf::kLongestRange + elf::kRangeSight] = {};
        unsigned char was[sizeof is] = {};
        const process::RemoteMemory memory(pid);
        const size_t read = std::min<size_t>(
            memory.read_some(mapping.start + (first - mapping.file_offset), is, sizeof is),
            static_cast<size_t>(std::max<ssize_t>(
                pread(descriptor, was, sizeof was, static_cast<off_t>(first)), 0)));
        for (uint64_t at = first; at <= offset && at - first + elf::kJumpBytes <= read; ++at) {
            const std::basic_string_view<unsigned char> code(was + (at - first),
                                                             read - (at - first));
            const unsigned char* const now = is + (at - first);
            if ((*now != 0xe8 && *now != 0xe9) ||
                code.substr(0, elf::kJumpBytes) == decltype(code)(now, elf::kJumpBytes))
                continue;
            const auto range = elf::movable_range(code, at);
            if (range && offset - at < range->length) return true;
        }
    }
    return false;
}

// Of these files, those that processes outside the tree map.
std::set<process::FileKey> shared_with_others(const std::set<process::FileKey>& files,
                                              const std::set<pid_t>& tree) {
    std::set<process::FileKey> shared;
    for (const pid_t pid : list_pids()) {
        if (pid == ::getpid() || tree.contains(pid)) continue;
        // What this program has forked for its own work (util/apart.h) maps what it maps.
        if (parent_of(pid) == ::getpid() && session::runs_this_program(pid)) continue;
        shared.merge(session::mapped_of(pid, files));
        if (shared.size() == files.size()) break;
    }
    return shared;
}

} // namespace

ProgressProbes::ProgressProbes(std::shared_ptr<Programs> programs, uint32_t progress,
                               std::unique_ptr<ProgressSites> sites)
    : programs_(std::move(programs)), progress_(progress), sites_(std::move(sites)) {}

Result<void> ProgressProbes::look(const std::vector<pid_t>& pids, Files& files) {
    std::map<process::FileKey, Batch> batches;
    for (const pid_t pid : pids) {
        known_.insert(pid);
        auto found = sites_->look_at(pid);
        if (!found) return std::move(found).error();
        files[pid] = std::move(found->files);
        for (const ProgressSites::Site& site : found->sites) {
            sb_progress_site meaning = site.meaning;
            meaning.progress = progress_;
            auto number = programs_->add_site(meaning);
            if (!number) return std::move(number).error();
            Batch& batch = batches[site.file];
            batch.file = site.file;
            batch.below = process::file_below(sites_->descriptor(site.file));
            batch.sites.emplace_back(*number, meaning);
            batch.places.push_back({site.offset, *number, false, site.semaphore});
        }
    }
    for (auto& [key, batch] : batches) batches_.push_back(std::move(batch));
    return {};
}

Result<std::vector<inject::Turn>> ProgressProbes::keep_jumps_out(const Batch& batch,
                                                                 pid_t only) const {
    const process::FileKey wanted = batch.below.wanted(batch.file);
    std::vector<inject::Turn> turns;
    for (const pid_t pid : only == -1 ? list_pids() : std::vector<pid_t>{only}) {
        if (pid == ::getpid() || session::mapped_of(pid, {wanted}).empty()) continue;
        auto turn = inject::Turn::take_if_any(pid, Clock::now() + kTurnTimeout);
        if (!turn && turn.error().error_number == ESRCH) continue; // it has ended
        if (!turn) return std::move(turn).error().with_context("probe " + sites_->name());
        turns.push_back(std::move(*turn));
        for (const engine::UprobePlace& place : batch.places) {
            if (!is_in_jump(pid, wanted, sites_->descriptor(batch.file), place.file_offset))
                continue;
            return make_error(ErrorKind::kUnsupported,
                              fmt::format("a probe of {} would be where a jump delays calls of "
                                          "process {}",
                                          sites_->name(), pid))
                .with_hint("use --engine=bpf, or leave that target out");
        }
    }
    return turns;
}

Result<engine::Links> ProgressProbes::probe(const Batch& batch, pid_t only) {
    const auto turns = keep_jumps_out(batch, only);
    if (!turns) return turns.error();
    std::vector<engine::UprobePlace> places = batch.places;
    for (engine::UprobePlace& place : places)
        place.cookie |= SB_COOKIE(0, batch.sets.newer, place.cookie);
    const std::string path = "/proc/self/fd/" + std::to_string(sites_->descriptor(batch.file));
    engine::Links links;
    int error = 0;
    if (programs_->features().uprobe_multi) {
        error = links.attach_multi(programs_->at_site(), path, places, only);
    } else {
        for (const int one : links.attach_perf(programs_->at_site(), path, places, only))
            if (error == 0) error = one;
    }
    if (error != 0) return errno_error("probe " + sites_->name() + " in " + path, error);
    return links;
}

void ProgressProbes::change(Batch& batch, const engine::ProbeSets& sets) {
    batch.sets = sets;
    for (auto& [number, site] : batch.sites) {
        site.sets = sets.word();
        programs_->change_site(number, site);
    }
}

// Of files that are one below overlayfs the probes of one are hit by the calls of all.
void ProgressProbes::leave_to_twins(Batch& batch) const {
    for (const Batch& other : batches_) {
        if (!other.is_wide || !other.below.is_that_of(batch.below)) continue;
        std::erase_if(batch.places, [&other](const engine::UprobePlace& place) {
            return std::any_of(other.places.begin(), other.places.end(), [&](const auto& one) {
                return one.file_offset == place.file_offset;
            });
        });
    }
}

Result<void> ProgressProbes::widen(Batch& batch) {
    leave_to_twins(batch);
    change(batch, {0, 1, false});
    if (!batch.places.empty()) {
        auto links = probe(batch, -1);
        if (!links) {
            change(batch, {0, 0});
            return std::move(links).error();
        }
        batch.wide = std::move(*links);
    }
    batch.is_wide = true;
    change(batch, {0, 1, true});
    batch.narrow.clear();
    change(batch, {1, 1});
    return {};
}

Result<void> ProgressProbes::attach(const std::vector<pid_t>& pids) {
    Files files;
    if (auto looked = look(pids, files); !looked) return looked;
    if (const auto refusal = sites_->refusal(); batches_.empty() && refusal) return *refusal;
    if (batches_.empty()) return make_error(ErrorKind::kNotFound, "is in none of the processes");
    const engine::Features& features = programs_->features();
    std::set<process::FileKey> shared;
    if (features.uprobe_multi_pid) {
        for (const Batch& batch : batches_) shared.insert(batch.below.wanted(batch.file));
        shared = shared_with_others(shared, known_);
    }
    for (Batch& batch : batches_) {
        if (!shared.contains(batch.below.wanted(batch.file))) {
            if (auto done = widen(batch); !done) return done;
            continue;
        }
        for (const auto& [pid, mapped] : files) {
            if (!mapped.contains(batch.file)) continue;
            auto links = probe(batch, pid);
            if (!links && links.error().error_number == ESRCH) continue; // it has ended
            if (!links) return std::move(links).error();
            batch.narrow[pid] = std::move(*links);
        }
    }
    return {};
}

Result<void> ProgressProbes::follow(const std::vector<session::ProcessInfo>& processes) {
    std::set<pid_t> listed, alive;
    std::vector<pid_t> born;
    bool missed = false; // one has lived and ended: what it called is lost, that of the next is not
    for (const session::ProcessInfo& process : processes) {
        listed.insert(process.pid);
        if (process.alive) alive.insert(process.pid);
        if (known_.contains(process.pid)) continue;
        missed |= !process.alive;
        if (process.alive) born.push_back(process.pid);
    }
    // Another process may get the number of one that has ended.
    std::erase_if(known_, [&](pid_t pid) { return !listed.contains(pid); });
    Files files;
    if (auto looked = look(born, files); !looked) return looked;
    const auto is_mapped = [&files](const Batch& batch) {
        return std::any_of(files.begin(), files.end(),
                           [&batch](const auto& one) { return one.second.contains(batch.file); });
    };
    for (Batch& batch : batches_) {
        std::erase_if(batch.narrow, [&](const auto& one) { return !alive.contains(one.first); });
        // Wide probes are hit through all mounts of what is below: there none may stay narrow.
        const bool concerned =
            std::any_of(batches_.begin(), batches_.end(), [&](const Batch& other) {
                return (&other == &batch || other.below.is_that_of(batch.below)) &&
                       is_mapped(other);
            });
        if (batch.is_wide || (!concerned && !missed)) continue;
        if (auto done = widen(batch); !done) return done;
    }
    return {};
}

} // namespace speedbump::experiment
