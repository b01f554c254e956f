// SPDX-License-Identifier: MIT
#include "session/probe_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "tree/descent.h"

namespace speedbump::session {

using engine::Attached;
using engine::FileProbes;
using engine::Probe;
using process::FileKey;

namespace {

// How long a look for outsiders may keep the session from its events.
constexpr auto kScanSlice = std::chrono::microseconds(3000);
// A file that outsiders map is looked at again this often, in case they are gone.
constexpr auto kRescan = std::chrono::seconds(10);
// And one that is new, the first time, this long after the look before.
constexpr auto kFirstScan = std::chrono::seconds(1);
// For each probe that is aimed at one process the kernel looks at every process that maps the file
// (register_for_each_vma()): so many took 6 s with 11 processes, and minutes with 50.
constexpr size_t kMany = 30'000;

} // namespace

ProbeSet::ProbeSet(engine::ProbeEngine& engine, tree::ProcessTree& tree, Members& members,
                   TargetSet& targets, Rules rules)
    : engine_(engine),
      tree_(tree),
      members_(members),
      targets_(targets),
      rules_(std::move(rules)),
      can_narrow_(engine.capabilities().narrow),
      reaper_(engine) {}

const std::string& ProbeSet::name_of(const File& file) const {
    return targets_.all()[file.probes.front().target].container;
}

engine::ProbeSets ProbeSet::sets_of(const FileKey& key) const {
    const auto file = files_.find(key);
    return file == files_.end() ? engine::ProbeSets{} : file->second.sets;
}

bool ProbeSet::has_twin(const std::string& name) const {
    return std::any_of(files_.begin(), files_.end(), [&](const auto& entry) {
        return entry.second.has_twin && name_of(entry.second) == name;
    });
}

bool ProbeSet::has_narrow() const {
    return std::any_of(files_.begin(), files_.end(),
                       [](const auto& entry) { return !entry.second.wide; });
}

// --- putting probes in place

void ProbeSet::add(const FileKey& key, int descriptor, const std::vector<Probe>& probes,
                   const Member& member) {
    if (probes.empty()) return;
    File& file = files_[key];
    const bool is_new = file.probes.empty();
    has_new_files_ |= is_new;
    file.descriptor = descriptor;
    if (is_new) file.below = process::file_below(descriptor);
    file.probes.insert(file.probes.end(), probes.begin(), probes.end());
    if (is_new) note_twins(key, file);
    std::set<uint32_t> present;
    if (file.wide) present.insert(member.tgid); // for all at once
    for (const auto& [tgid, placed] : file.narrow) present.insert(tgid);
    for (const uint32_t tgid : present) {
        const Member* other = members_.find(tgid);
        if (!other || !other->alive) continue;
        if (auto probed = probe(*other, key); !probed) rules_.put_off(*other, probed.error());
    }
}

// Wide probes of each would be hit by whoever maps the other.
void ProbeSet::note_twins(const FileKey& key, File& file) {
    for (auto& [other_key, other] : files_) {
        if (other_key == key || !other.below.is_that_of(file.below)) continue;
        file.has_twin = other.has_twin = true;
        narrow(other_key);
        if (!can_narrow_) continue;
        late_.add(key, name_of(file));
        late_.add(other_key, name_of(other));
    }
}

// Whose probes it is that are hit, where they can't be narrow.
const ProbeSet::File* ProbeSet::wide_twin(const File& file) const {
    if (!file.has_twin) return nullptr;
    const auto twin = std::find_if(files_.begin(), files_.end(), [&file](const auto& entry) {
        return entry.second.wide && entry.second.below.is_that_of(file.below);
    });
    return twin == files_.end() ? nullptr : &twin->second;
}

Result<void> ProbeSet::place(File& file, Placed& placed, std::optional<pid_t> only) {
    if (placed.count == file.probes.size()) return {};
    const FileProbes missing{file.descriptor, std::span(file.probes).subspan(placed.count),
                             file.sets.newer};
    std::vector<engine::RefusedProbe> refused;
    auto attached = engine_.attach(missing, only, refused);
    targets_.refused(refused);
    if (!attached) return std::move(attached).error();
    placed.attached.push_back(std::move(*attached));
    placed.count = file.probes.size();
    return {};
}

Result<void> ProbeSet::probe(const Member& member, const FileKey& key) {
    const auto found = files_.find(key);
    if (is_out_ || found == files_.end()) return {};
    File& file = found->second;
    if (!file.wide && !can_narrow_) {
        const File* const twin = wide_twin(file);
        if (!twin) return widen(key);
        if (warned_narrow_.insert(key).second)
            rules_.warn(
                fmt::format("{} and {} are one file below overlayfs: the probes of the "
                            "former are hit by both, and count for both",
                            name_of(*twin), name_of(file)));
        return {};
    }
    if (file.wide) return place(file, file.for_all, std::nullopt);
    Placed& placed = file.narrow[member.tgid];
    auto done = place(file, placed, member.pid);
    if (done) return done;
    if (placed.count == 0) file.narrow.erase(member.tgid);
    if (done.error().kind == ErrorKind::kNotFound) return {}; // it has ended
    return done;
}

Result<void> ProbeSet::probe(const Member& member) {
    for (const FileKey& key : member.files)
        if (auto probed = probe(member, key); !probed) return probed;
    return {};
}

void ProbeSet::probe_together(const FileKey& key, File& file) {
    if (is_out_ || !can_narrow_ || file.wide) return;
    std::vector<uint32_t> tgids;
    std::vector<pid_t> pids;
    for (const auto& [tgid, member] : members_.all()) {
        if (!member.alive || !member.files.contains(key) || file.narrow.contains(tgid)) continue;
        tgids.push_back(tgid);
        pids.push_back(member.pid);
    }
    if (pids.size() < 2) return;
    std::vector<Attached> attached =
        engine_.attach_each({file.descriptor, file.probes, file.sets.newer}, pids);
    for (size_t i = 0; i < tgids.size(); ++i) {
        if (!attached[i]) continue;
        Placed& placed = file.narrow[tgids[i]];
        placed.attached.push_back(std::move(attached[i]));
        placed.count = file.probes.size();
    }
}

size_t ProbeSet::count_who_map(const FileKey& key) const {
    const auto& all = members_.all();
    return static_cast<size_t>(std::count_if(all.begin(), all.end(), [&key](const auto& entry) {
        return entry.second.alive && entry.second.files.contains(key);
    }));
}

void ProbeSet::warn_of_many() const {
    if (!can_narrow_) return;
    for (const auto& [key, file] : files_) {
        const size_t processes = file.wide ? 1 : count_who_map(key);
        const size_t probes = file.probes.size() * processes;
        if (processes < 2 || probes < kMany) continue;
        rules_.warn(fmt::format(
            "{} functions of {} are probed in each of {} processes by itself, {} probes: this may "
            "take the kernel minutes, and as long again to take out; name fewer functions, or one "
            "process (--pid with --no-children)",
            file.probes.size(), name_of(file), processes, probes));
    }
}

void ProbeSet::probe_together() {
    for (auto& [key, file] : files_) probe_together(key, file);
}

// --- taking them out

void ProbeSet::release(Placed placed) {
    for (Attached& one : placed.attached) reaper_.release(std::move(one));
}

void ProbeSet::drop(uint32_t tgid) {
    for (auto& [key, file] : files_)
        if (auto own = file.narrow.extract(tgid)) release(std::move(own.mapped()));
}

void ProbeSet::take_out() {
    is_out_ = true;
    std::vector<Attached> all;
    const auto take = [&all](Placed placed) {
        std::move(placed.attached.begin(), placed.attached.end(), std::back_inserter(all));
    };
    for (auto& [key, file] : files_) {
        take(std::exchange(file.for_all, {}));
        for (auto& [tgid, placed] : file.narrow) take(std::move(placed));
        file.narrow.clear();
    }
    engine_.release(std::move(all));
    reaper_.wait(); // for what was on its way out before
}

Result<void> ProbeSet::put_back() {
    is_out_ = false;
    for (auto& [key, file] : files_) {
        if (!file.wide) continue;
        if (auto placed = place(file, file.for_all, std::nullopt); !placed) return placed;
    }
    probe_together();
    for (const auto& [tgid, member] : members_.all()) {
        if (!member.alive) continue;
        if (auto probed = probe(member); !probed)
            return std::move(probed).error().with_context(
                fmt::format("process {} ({})", member.pid, member.command));
    }
    return {};
}

// --- narrow and wide

void ProbeSet::publish_sets(const File& file) {
    if (auto published = targets_.set_sets(file.probes, file.sets); !published)
        rules_.warn(published.error().message);
}

Result<void> ProbeSet::begin_change(File& file) {
    // Where the change before has not ended, the probes that it leaves count no more from here.
    file.leaving.reset();
    file.sets = {file.sets.newer, (file.sets.newer + 1) & SB_SET_MASK, false};
    auto published = targets_.set_sets(file.probes, file.sets);
    if (!published) file.sets = {file.sets.older, file.sets.older};
    return published;
}

void ProbeSet::flip(File& file) {
    file.sets.newer_counts = true;
    publish_sets(file);
}

void ProbeSet::give_up_change(File& file) {
    file.sets = {file.sets.older, file.sets.older};
    publish_sets(file);
}

void ProbeSet::end_changes() {
    for (auto& [key, file] : files_) {
        if (!file.leaving || !reaper_.are_out(*file.leaving)) continue;
        file.leaving.reset();
        file.sets = {file.sets.newer, file.sets.newer};
        publish_sets(file);
    }
}

bool ProbeSet::is_changing() const {
    return std::any_of(files_.begin(), files_.end(),
                       [](const auto& entry) { return entry.second.leaving.has_value(); });
}

Result<void> ProbeSet::widen(const FileKey& key) {
    File& file = files_.at(key);
    if (file.wide) return {};
    if (auto begun = begin_change(file); !begun) return begun;
    if (auto placed = place(file, file.for_all, std::nullopt); !placed) {
        give_up_change(file);
        return placed;
    }
    file.wide = true;
    late_.erase(key);
    flip(file);
    for (auto& [tgid, placed] : file.narrow) release(std::move(placed));
    file.narrow.clear();
    file.leaving = reaper_.released();
    end_changes();
    return {};
}

void ProbeSet::narrow(const FileKey& key) {
    const auto found = files_.find(key);
    if (found == files_.end() || !found->second.wide || !can_narrow_) return;
    File& file = found->second;
    if (auto begun = begin_change(file); !begun) return rules_.warn(begun.error().message);
    file.wide = false;
    late_.add(key, name_of(file));
    probe_together(key, file);
    for (const auto& [tgid, member] : members_.all()) {
        if (!member.alive || !member.files.contains(key)) continue;
        if (auto probed = probe(member, key); !probed) rules_.put_off(member, probed.error());
    }
    flip(file);
    release(std::exchange(file.for_all, {}));
    file.leaving = reaper_.released();
}

void ProbeSet::outsider_maps(pid_t pid) {
    std::set<FileKey> watched = scan_.files(); // a scan may have passed the outsider already
    for (const auto& [key, file] : files_)
        if (file.wide) watched.insert(file.below.wanted(key));
    if (watched.empty()) return; // what it maps is long to read
    const std::set<FileKey> shared = mapped_of(pid, watched);
    scan_.note_shared(shared);
    for (const auto& [key, file] : files_)
        if (shared.contains(file.below.wanted(key))) narrow(key);
}

void ProbeSet::look_for_outsiders() {
    if (!rules_.may_widen || !can_narrow_ || is_out_) return;
    if (scan_.running())
        scan_.advance(kScanSlice);
    else if (!scan_.files().empty())
        end_look();
    else
        begin_look();
}

void ProbeSet::begin_look() {
    const auto pause = has_new_files_ ? Clock::duration(kFirstScan) : Clock::duration(kRescan);
    if (last_scan_ != Clock::time_point{} && Clock::now() - last_scan_ < pause) return;
    std::set<FileKey> candidates;
    for (const auto& [key, file] : files_)
        if (!file.wide && !file.has_twin) candidates.insert(file.below.wanted(key));
    last_scan_ = Clock::now();
    has_new_files_ = false;
    if (candidates.empty()) return;
    auto listed = tree_.list_processes();
    if (!listed) return;
    // What this program has forked for its own work (util/apart.h) maps what it maps.
    const auto own = tree::descendants(*listed, {}, {{tree_.own_tgid(), 1}}, true, 0);
    std::vector<pid_t> outsiders;
    for (const tree::ListedProcess& process : *listed)
        if (!process.kernel_thread && tree_.member_roots(process.tgid) == 0 &&
            !(own.contains(process.tgid) && runs_this_program(process.pid)))
            outsiders.push_back(process.pid);
    scan_ = OutsiderScan(std::move(outsiders), std::move(candidates));
}

// Files that no outsider maps are changed to wide probes.
void ProbeSet::end_look() {
    for (const auto& [key, file] : files_) {
        const FileKey wanted = file.below.wanted(key);
        if (file.wide || file.has_twin || !scan_.files().contains(wanted)) continue;
        const std::string& name = name_of(file);
        if (scan_.shared().contains(wanted)) {
            late_.add(key, name);
        } else if (auto done = widen(key); !done && warned_narrow_.insert(key).second) {
            const std::string what = fmt::format("probe {} for all its processes at once", name);
            rules_.warn(std::move(done).error().with_context(what).message);
        }
    }
    scan_ = {};
    last_scan_ = Clock::now();
}

void ProbeSet::warn_of_late_files() {
    for (const std::string& name : late_.take_untold())
        rules_.warn(fmt::format(
            "{} is mapped {}, so that the tree's are probed one by one: each new one runs unslowed "
            "for some milliseconds, and one that lives no longer is missed (docs/targets-file.md, "
            "new processes)",
            name,
            has_twin(name) ? "through several mounts of overlayfs"
                           : "by processes outside the tree as well"));
}

} // namespace speedbump::session
