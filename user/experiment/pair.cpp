// SPDX-License-Identifier: MIT
#include "experiment/pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "experiment/thresholds.h"

namespace speedbump::experiment {

namespace {

constexpr double kUnlike = 0.002; // of the time per unit: what is worth a word
constexpr size_t kSlicesOfALook = 20;

using Stretches = std::array<std::vector<Stretch>, 2>;

Stretches progress_of(const PairDocument& document, size_t point) {
    Stretches result;
    for (const PairSlice& slice : document.slices)
        for (const Side side : {kSideA, kSideB})
            result[side].push_back(slice.progress.at(point)[side]);
    return result;
}

Stretches cpu_of(const PairDocument& document) {
    Stretches result;
    for (const PairBeat& beat : document.beats)
        for (const Side side : {kSideA, kSideB}) result[side].push_back(beat.cpu[side]);
    return result;
}

// Of the seconds in which both have it.
Stretches percentile_of(const PairDocument& document, size_t point,
                        nanoseconds Latency::*percentile) {
    Stretches result;
    for (const PairBeat& beat : document.beats) {
        const auto& latency = beat.latency.at(point);
        if (!latency[kSideA] || !latency[kSideB]) continue;
        for (const Side side : {kSideA, kSideB})
            result[side].push_back(
                {1, static_cast<double>(((*latency[side]).*percentile).count())});
    }
    return result;
}

size_t looks(const PairDocument& document) {
    return document.slices.size() / kSlicesOfALook;
}

// Ended by what was seen, or by who saw it.
bool may_stop_at_any_look(const PairDocument& document) {
    return document.stopped != "time";
}

// ln of how much longer a unit takes in b as b had a CPU for less of the time in which it was able
// to run. Services that are alone on a CPU stay there, so that what else runs on it takes from one
// of them all the time. Of a service that sleeps as well it is the most that it can be.
double unlike_of(const PairDocument& document) {
    std::array<double, 2> share{};
    for (const Side side : {kSideA, kSideB}) {
        if (document.ran[side] <= 0) return 0;
        share[side] = document.ran[side] / (document.ran[side] + document.waited[side]);
    }
    return std::log(share[kSideA] / share[kSideB]);
}

Change change_of(const PairDocument& document, const std::string& progress, const std::string& what,
                 const Stretches& of, double unlike) {
    Change change;
    change.progress = progress;
    change.what = what;
    change.a = pace_of(of[kSideA]).period;
    change.b = pace_of(of[kSideB]).period;
    change.change = may_stop_at_any_look(document)
                        ? change_at_any_look(of[kSideA], of[kSideB], looks(document), unlike)
                        : change_side_by_side(of[kSideA], of[kSideB], unlike);
    change.p = change.change.p;
    return change;
}

void add_percentiles(std::vector<Change>& changes, const PairDocument& document, size_t point) {
    const std::pair<const char*, nanoseconds Latency::*> percentiles[] = {
        {"p50", &Latency::p50}, {"p90", &Latency::p90}, {"p99", &Latency::p99}};
    for (const auto& [what, percentile] : percentiles) {
        const Stretches both = percentile_of(document, point, percentile);
        if (both[kSideA].empty()) continue;
        changes.push_back(
            percentile_change(document.progress[point], what, both[kSideA], both[kSideB]));
    }
}

} // namespace

Changes changes_between(const PairDocument& document) {
    Changes result;
    for (size_t point = 0; point < document.progress.size(); ++point) {
        const std::string& name = document.progress[point];
        const Stretches paces = progress_of(document, point);
        result.changes.push_back(
            change_of(document, name, "time per unit", paces, unlike_of(document)));
        for (const Side side : {kSideA, kSideB})
            if (pace_of(paces[side]).period <= 0)
                result.doubts.push_back(
                    fmt::format("{} never ticked in {}", name, side == kSideA ? "a" : "b"));
        if (point == 0 && document.has_cpu) {
            Change cpu = change_of(document, name, "CPU per unit", cpu_of(document), 0);
            cpu.is_pace = false;
            if (cpu.a > 0 && cpu.b > 0) result.changes.push_back(std::move(cpu));
        }
        add_percentiles(result.changes, document, point);
    }
    correct(result.changes);
    if (!document.complete) result.doubts.push_back("it was cut short: " + document.stopped);
    const bool is_unlike = std::abs(unlike_of(document)) > kUnlike;
    if (is_unlike || std::max(document.waited[kSideA], document.waited[kSideB]) > kContention)
        result.notes.push_back(fmt::format(
            "threads of a waited {:.3f} s for a CPU in each second, of b {:.3f}{}",
            document.waited[kSideA], document.waited[kSideB],
            is_unlike
                ? ": not alike, so that the interval of the time per unit holds the change with "
                  "that and without it"
                : ": they, or others, compete for the CPUs"));
    for (const std::string& warning : document.warnings) result.notes.push_back(warning);
    return result;
}

Estimate change_so_far(const PairDocument& document) {
    const Stretches paces = progress_of(document, 0);
    return change_at_any_look(paces[kSideA], paces[kSideB], looks(document));
}

} // namespace speedbump::experiment
