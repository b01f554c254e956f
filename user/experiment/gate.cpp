// SPDX-License-Identifier: MIT
#include "experiment/gate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "experiment/analysis.h"
#include "experiment/comparison.h"
#include "experiment/thresholds.h"
#include "util/clock.h"

namespace speedbump::experiment {

namespace {

// Percentiles come in sixteen steps for each power of two (bpf/progress.bpf.c); of one that always
// falls into the same step no more is known than that.
const double kPercentileStep = std::log(17.0 / 16.0);

// What was measured with probes and without delay, block by block.
std::vector<Stretch> undelayed(const Document& document, size_t progress) {
    std::vector<Stretch> result;
    for (const Block& block : document.blocks) {
        Stretch stretch;
        for (const Slice& slice : block.slices) {
            if (slice.arm.kind != ArmKind::kProbe) continue;
            stretch.units += static_cast<double>(slice.progress.at(progress));
            stretch.time += ns(slice.progress_time.at(progress));
        }
        if (stretch.time > 0) result.push_back(stretch);
    }
    return result;
}

// One percentile of the undelayed slices that have it; each counts as one unit.
std::vector<Stretch> undelayed(const Document& document, size_t progress,
                               nanoseconds Latency::*percentile) {
    std::vector<Stretch> result;
    for (const Block& block : document.blocks)
        for (const Slice& slice : block.slices) {
            const auto& latency = slice.latency.at(progress);
            if (slice.arm.kind == ArmKind::kProbe && latency)
                result.push_back({1, ns((*latency).*percentile)});
        }
    return result;
}

Change between(const std::string& progress, const std::string& what, const Pace& a, const Pace& b) {
    Change change;
    change.progress = progress;
    change.what = what;
    change.a = a.period;
    change.b = b.period;
    change.change = change_apart(a, b);
    change.p = change.change.p;
    return change;
}

void add_point(std::vector<Change>& changes, const std::string& name, const Document& a,
               size_t in_a, const Document& b, size_t in_b) {
    changes.push_back(
        between(name, "time per unit", pace_of(undelayed(a, in_a)), pace_of(undelayed(b, in_b))));
    const std::pair<const char*, nanoseconds Latency::*> percentiles[] = {
        {"p50", &Latency::p50}, {"p90", &Latency::p90}, {"p99", &Latency::p99}};
    for (const auto& [what, percentile] : percentiles) {
        const auto of_a = undelayed(a, in_a, percentile), of_b = undelayed(b, in_b, percentile);
        if (!of_a.empty() && !of_b.empty())
            changes.push_back(percentile_change(name, what, of_a, of_b));
    }
}

void add_doubts(std::vector<std::string>& doubts, const std::string& side,
                const Document& document) {
    if (!document.complete) doubts.push_back(side + " was cut short: " + document.stopped);
    for (const std::string& why : analyse(document).invalid_because)
        doubts.push_back(side + " is invalid: " + why);
    if (document.fleet)
        doubts.push_back(side +
                         " is of many hosts, whose time per unit without delays is not known "
                         "by block: only criticalities can be compared");
}

void add_note(std::vector<std::string>& notes, const std::string& what, const std::string& a,
              const std::string& b) {
    if (a != b) notes.push_back("a and b were measured on different " + what + ": " + a + ", " + b);
}

// Of a fleet, whose own host has measured nothing, that of its hosts; each once, in any order.
std::string all_of(const Document& document, const std::string& own,
                   std::string FleetHost::*field) {
    if (!document.fleet) return own;
    std::set<std::string> all;
    for (const FleetHost& host : document.fleet->hosts) all.insert(host.*field);
    return fmt::format("{}", fmt::join(all, " + "));
}

} // namespace

std::string to_string(Judgement judgement) {
    switch (judgement) {
        case Judgement::kNotWorse:
            return "not worse";
        case Judgement::kWorse:
            return "worse";
        case Judgement::kUndecided:
            return "undecided";
    }
    return "undecided";
}

Judgement judge(const Change& change, double limit) {
    if (!std::isfinite(change.change.error)) return Judgement::kUndecided;
    if (change.change.interval.high < limit) return Judgement::kNotWorse;
    if (change.p >= kSignificant) return Judgement::kUndecided;
    return change.change.value >= limit ? Judgement::kWorse : Judgement::kNotWorse;
}

Judgement judge(const Changes& changes, double limit) {
    if (!changes.doubts.empty()) return Judgement::kUndecided;
    bool is_told = false, is_open = false;
    for (const Change& change : changes.changes) {
        const Judgement one = judge(change, limit);
        if (one == Judgement::kWorse) return one;
        if (!change.is_pace) continue;
        is_told |= one == Judgement::kNotWorse;
        is_open |= one == Judgement::kUndecided;
    }
    return is_told && !is_open ? Judgement::kNotWorse : Judgement::kUndecided;
}

double times_longer(const Change& change, double limit) {
    const double half_width = change.change.interval.half_width();
    if (!std::isfinite(half_width) || limit <= 0) return 0;
    // An interval narrower than the limit excludes the limit or no change, wherever it lies.
    const double ratio = half_width / (limit / 2);
    return std::max(1.0, ratio * ratio);
}

Change percentile_change(const std::string& progress, const std::string& what,
                         std::span<const Stretch> a, std::span<const Stretch> b) {
    const auto with_steps = [](Pace pace) {
        pace.error = std::hypot(pace.error, kPercentileStep / std::sqrt(12.0));
        return pace;
    };
    Change change = between(progress, what, with_steps(pace_of(a)), with_steps(pace_of(b)));
    change.is_pace = false;
    return change;
}

void correct(std::vector<Change>& changes) {
    std::vector<double> p;
    for (const Change& change : changes) p.push_back(change.change.p);
    const std::vector<double> corrected = holm(p);
    for (size_t i = 0; i < corrected.size(); ++i) changes[i].p = corrected[i];
}

Result<Changes> changes_between(const Document& a, const Document& b) {
    Changes result;
    const auto common = common_points(a, b);
    if (!common) return common.error();
    for (const CommonPoint& point : *common)
        add_point(result.changes, point.name, a, point.in_a, b, point.in_b);
    correct(result.changes);
    add_doubts(result.doubts, "a", a);
    add_doubts(result.doubts, "b", b);
    add_note(result.notes, "hosts", all_of(a, a.host, &FleetHost::name),
             all_of(b, b.host, &FleetHost::name));
    add_note(result.notes, "kernels", all_of(a, a.kernel, &FleetHost::kernel),
             all_of(b, b.kernel, &FleetHost::kernel));
    add_note(result.notes, "machines", all_of(a, a.machine, &FleetHost::machine),
             all_of(b, b.machine, &FleetHost::machine));
    add_note(result.notes, "engines", a.engine, b.engine);
    result.notes.push_back(
        "a and b were measured one after the other: what else changed on the host in between is in "
        "the change, and not in its interval (experiment --ab measures both at once)");
    return result;
}

} // namespace speedbump::experiment
