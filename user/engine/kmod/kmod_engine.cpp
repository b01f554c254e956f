// SPDX-License-Identifier: MIT
#include "engine/kmod/kmod_engine.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/measure.h"

namespace speedbump::engine {

namespace {

std::string name_of(const std::string& path, uint64_t offset, size_t number) {
    // Each root has a target of its own; the module knows targets by how they are spelled.
    return fmt::format("{}:0x{}{:x}", path, std::string(number, '0'), offset);
}

nanoseconds whole(double ns) {
    return nanoseconds(static_cast<int64_t>(std::llround(std::max(0.0, ns))));
}

} // namespace

Result<std::unique_ptr<KmodEngine>> KmodEngine::open(Warn warn) {
    auto owner = sbctl::Owner::open();
    if (!owner) return std::move(owner).error();
    if (auto held = owner->hold(); !held) {
        if (held.error().error_number != EBUSY) return std::move(held).error();
        return make_error(ErrorKind::kUnsupported,
                          "the kernel module is switched off, and holds targets of others that "
                          "would be live")
            .with_hint("sbctl enable, or sbctl clear; sbctl list shows them");
    }
    const auto status = sbctl::status();
    if (!status) return status.error();
    return std::unique_ptr<KmodEngine>(
        new KmodEngine(std::move(*owner), status->lost_processes, std::move(warn)));
}

Capabilities KmodEngine::capabilities() const {
    return {.name = "kmod",
            .title = "the kernel module",
            .narrow = false,
            .every = false,
            .nop5 = accepts_nop5_};
}

// --- delays

nanoseconds KmodEngine::wanted(uint32_t target) const {
    const Setting& setting = settings_[target];
    const TargetSettings& settings = setting.settings;
    if (!armed_ || !settings.enabled) return nanoseconds(0);
    if (setting.armed_at_ns != 0) {
        const auto age = nanoseconds(monotonic_ns() - setting.armed_at_ns);
        if (age < settings.start) return nanoseconds(0);
        if (settings.duration.count() > 0 && age >= settings.start + settings.duration)
            return nanoseconds(0);
    }
    return settings.delay;
}

nanoseconds KmodEngine::spin_of(nanoseconds asked, elf::SiteKind kind) const {
    if (asked.count() == 0) return asked;
    // one that costs more than it should last is counted as a delay all the same
    return std::max(nanoseconds(1), asked - outside_[static_cast<size_t>(kind)]);
}

Result<void> KmodEngine::refresh() {
    const auto lines = sbctl::list();
    if (!lines) return lines.error();
    size_t found = 0;
    for (const sbctl::Target& line : *lines) {
        const auto known = spots_.find(line.name);
        if (known == spots_.end()) continue;
        ++found;
        Spot& spot = known->second;
        Counts& counts = counts_[spot.target];
        const uint64_t delays = line.delays - spot.seen.delays;
        counts.target = spot.target;
        if (armed_) counts.hits += line.hits - spot.seen.hits;
        counts.delays += delays;
        // The module's are those of its spins, without what a hit costs besides.
        const nanoseconds beside = spot.latest - spin_of(spot.latest, spot.kind);
        counts.requested +=
            line.requested - spot.seen.requested + static_cast<int64_t>(delays) * beside;
        counts.measured += line.measured - spot.seen.measured +
                           static_cast<int64_t>(delays) * outside_[static_cast<size_t>(spot.kind)];
        spot.seen = line;
    }
    if (trouble_.empty() && found < spots_.size())
        trouble_ = "somebody else has removed targets of this session from the kernel module";
    return {};
}

Result<void> KmodEngine::push() {
    for (auto& [name, spot] : spots_) {
        const nanoseconds asked = wanted(spot.target);
        if (asked == spot.asked) continue;
        if (auto done = owner_.update(name, spin_of(asked, spot.kind));
            !done && done.error().error_number != ENOENT)
            return done;
        spot.asked = asked;
        if (asked.count() > 0) spot.latest = asked;
    }
    return {};
}

void KmodEngine::apply() {
    auto done = refresh(); // what is counted was asked for by the old settings
    if (done) done = push();
    if (!done) trouble_ = done.error().message;
    next_change_ = Clock::time_point::max();
    const auto now = monotonic_ns();
    for (const Setting& setting : settings_) {
        if (!armed_ || setting.armed_at_ns == 0) continue;
        const auto age = nanoseconds(now - setting.armed_at_ns);
        const nanoseconds start = setting.settings.start;
        for (const nanoseconds edge : {start, start + setting.settings.duration})
            if (edge > age) next_change_ = std::min(next_change_, Clock::now() + (edge - age));
    }
}

Result<void> KmodEngine::configure(uint32_t target, const TargetSettings& settings,
                                   uint64_t armed_at_ns, const ProbeSets&) {
    if (target >= settings_.size()) settings_.resize(target + 1);
    settings_[target] = {settings, armed_at_ns};
    next_change_ = Clock::time_point::min();
    return {};
}

void KmodEngine::arm(bool armed) {
    if (armed == armed_) return;
    if (armed) {
        (void)refresh(); // calls that were made before it are not counted
        armed_ = true;
        apply();
        return;
    }
    armed_ = false;
    if (auto done = push(); !done) trouble_ = done.error().message;
    armed_ = true; // for what came before the last of the delays had ended
    (void)refresh();
    armed_ = false;
}

// --- probes

// The living members that share a bit with the mask and whose parents don't: all others descend
// from them, for as long as these live.
Result<std::vector<pid_t>> KmodEngine::topmost(uint64_t mask) {
    auto listed = tree_->list_processes();
    if (!listed) return std::move(listed).error().with_context("list the processes");
    const auto belongs = [&](uint32_t tgid) { return (tree_->member_roots(tgid) & mask) != 0; };
    std::vector<pid_t> pids;
    for (const tree::ListedProcess& process : *listed)
        if (!process.ended && process.pid > 0 && belongs(process.tgid) &&
            !belongs(process.parent_tgid))
            pids.push_back(process.pid);
    return pids;
}

Result<Attached> KmodEngine::attach(const FileProbes& probes, std::optional<pid_t>,
                                    std::vector<RefusedProbe>& refused) {
    std::map<uint64_t, std::vector<pid_t>> pids; // by mask
    for (const Probe& probe : probes.probes) {
        if (attached_.contains(probe.target)) continue;
        const uint64_t mask = settings_[probe.target].settings.root_mask;
        if (!pids.contains(mask)) {
            auto top = topmost(mask);
            if (!top) return std::move(top).error();
            pids[mask] = std::move(*top);
        }
        auto added = add(probes.file, probe, pids[mask]);
        if (!added && added.error().error_number == ENOSPC)
            return std::move(added)
                .error()
                .with_context(fmt::format("attach {} probes", probes.probes.size()))
                .with_hint("load it with max_targets=65536, or use --engine=bpf");
        if (!added) refused.push_back({probe, added.error().error_number});
        attached_.insert(probe.target);
    }
    return Attached();
}

std::vector<Attached> KmodEngine::attach_each(const FileProbes&, const std::vector<pid_t>& pids) {
    return std::vector<Attached>(pids.size());
}

void KmodEngine::release(std::vector<Attached>) {}

Result<void> KmodEngine::add(int file, const Probe& probe, const std::vector<pid_t>& roots) {
    const std::string path = fmt::format("/proc/{}/fd/{}", getpid(), file);
    for (size_t number = 0; number < roots.size(); ++number) {
        const std::string name = name_of(path, probe.file_offset, number);
        const nanoseconds asked = wanted(probe.target);
        Spot spot{probe.target, probe.kind, asked, asked, {}};
        if (auto added = owner_.add(name, spin_of(spot.asked, spot.kind), roots[number]); !added)
            return added;
        // The module would wait for the next process of that number.
        if (kill(roots[number], 0) != 0 && errno == ESRCH)
            (void)owner_.remove(name);
        else
            spots_.emplace(name, std::move(spot));
    }
    return {};
}

void KmodEngine::tend() {
    if (Clock::now() >= next_change_) apply();
}

Clock::duration KmodEngine::until_next() const {
    const auto now = Clock::now();
    return next_change_ > now ? next_change_ - now : Clock::duration(0);
}

// --- counts

Result<std::vector<Counts>> KmodEngine::read_counts() {
    if (auto counted = refresh(); !counted) {
        trouble_ = counted.error().message;
    } else if (const auto status = sbctl::status(); !status) {
        trouble_ = status.error().message;
    } else {
        lost_members_ = status->lost_processes - lost_before_;
        if (trouble_.empty() && !spots_.empty() && !status->enabled)
            trouble_ = "somebody else has switched the kernel module off: nothing is delayed";
    }
    if (!trouble_.empty() && !std::exchange(trouble_told_, true)) warn_(trouble_);
    std::vector<Counts> result;
    for (const auto& [target, counts] : counts_)
        if (counts.hits != 0) result.push_back(counts);
    return result;
}

// --- calibration

// One calibration site, probed in this process alone.
class KmodEngine::OwnProbe {
  public:
    OwnProbe(KmodEngine& engine, const CalibrationSite& site)
        : engine_(engine),
          site_(site),
          name_(name_of(fmt::format("/proc/{}/exe", getpid()),
                        own_file_offset(reinterpret_cast<const void*>(site.function)), 0)) {
        plain_ = plain_cost(site);
    }
    OwnProbe(const OwnProbe&) = delete;
    OwnProbe& operator=(const OwnProbe&) = delete;
    ~OwnProbe() { (void)engine_.owner_.remove(name_); }

    Result<void> attach() { return engine_.owner_.add(name_, nanoseconds(0), getpid()); }

    // What a call of the site takes longer with a spin of this length, in ns.
    double added_ns(nanoseconds spin, int calls) {
        if (!engine_.owner_.update(name_, spin)) return 0;
        ns_per_call(site_.function, kWarmUpCalls);
        return ns_per_call(site_.function, calls) - plain_;
    }

  private:
    KmodEngine& engine_;
    CalibrationSite site_;
    std::string name_;
    double plain_ = 0;
};

namespace {

// On kernels that rewrite 5-byte nops the module takes none.
bool is_refused_nop(const CalibrationSite& site, const Result<void>& attached) {
    return site.kind == elf::SiteKind::kOptimizedNop && !attached &&
           attached.error().error_number == EOPNOTSUPP;
}

} // namespace

Result<Floors> KmodEngine::calibrate() {
    for (const CalibrationSite& site : calibration_sites()) {
        OwnProbe probe(*this, site);
        auto attached = probe.attach();
        if (is_refused_nop(site, attached)) {
            accepts_nop5_ = false;
            continue;
        }
        if (!attached)
            return std::move(attached).error().with_context("calibrate the kernel module");
        std::vector<double> floors, outsides;
        for (int batch = 0; batch < kRounds * kBatches; ++batch) {
            floors.push_back(probe.added_ns(nanoseconds(0), kCalls));
            outsides.push_back(probe.added_ns(kShortDelay, kCalls) -
                               static_cast<double>(kShortDelay.count()));
        }
        const auto kind = static_cast<size_t>(site.kind);
        floors_.by_kind[kind] = whole(undisturbed(floors));
        outside_[kind] = whole(undisturbed(outsides));
    }
    return floors_;
}

Result<std::vector<CalibrationRow>> KmodEngine::measure_accuracy(
    const std::vector<nanoseconds>& delays) {
    std::vector<CalibrationRow> rows;
    for (const CalibrationSite& site : calibration_sites()) {
        OwnProbe probe(*this, site);
        auto attached = probe.attach();
        if (is_refused_nop(site, attached)) continue;
        if (!attached) return std::move(attached).error().with_context("measure the accuracy");
        rows.push_back(accuracy_of("kmod", site.kind, delays, [&](nanoseconds delay, int calls) {
            return probe.added_ns(spin_of(delay, site.kind), calls);
        }));
    }
    return rows;
}

} // namespace speedbump::engine
