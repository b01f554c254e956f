// SPDX-License-Identifier: MIT
#include "experiment/analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "experiment/anytime.h"
#include "experiment/by_host.h"
#include "experiment/slices.h"
#include "experiment/thresholds.h"
#include "util/clock.h"
#include "util/numbers.h"

namespace speedbump::experiment {

namespace {

constexpr double kNsPerUs = 1000;
// A positive control's criticality must differ from 0, and be as near to 1 as this or its 99 %
// interval cover 1.
constexpr double kPositiveTolerance = 0.15;
// So many good runs are called invalid by chance: who makes hundreds must not lose some to it.
constexpr double kShamAlarm = 1e-4;
// A count of units between two moments is off by up to one: so much, where these are at random.
const double kCountingError = std::sqrt(1.0 / 6);
constexpr double kFewUnits = 30;         // of a slice: below, a unit more or less moves its dose
constexpr double kFewestUnitsOfWork = 5; // below, where a slice begins decides, and some have none

bool is_usable(const Slice& slice, size_t progress) {
    return slice.progress.at(progress) > 0 && slice.progress_time.at(progress).count() > 0 &&
           slice.length.count() > 0;
}

double units_of(const Slice& slice, size_t progress) {
    return static_cast<double>(slice.progress[progress]);
}

double period_of(const Slice& slice, size_t progress) {
    return ns(slice.progress_time[progress]) / units_of(slice, progress);
}

// In a slice without delay, on average.
double mean_units(const Document& document, size_t progress) {
    double units = 0, slices = 0;
    for (const Block& block : document.blocks)
        for (const Slice& slice : block.slices) {
            if (slice.arm.kind != ArmKind::kProbe) continue;
            units += static_cast<double>(slice.progress.at(progress));
            ++slices;
        }
    return slices > 0 ? units / slices : 0;
}

bool has_too_few_units(const Document& document, size_t progress) {
    return !document.sliced && mean_units(document, progress) < kFewestUnitsOfWork;
}

// As rates: progress and injected time are not read at the very same moments.
double dose_of(const Slice& slice, size_t progress) {
    return ns(slice.injected) / ns(slice.length) * period_of(slice, progress);
}

double middle_of(const Slice& slice) {
    return (ns(slice.start) + ns(slice.length) / 2) / 1e9;
}

// The slices that `x_of` gives a value for, of the blocks of one kind.
template <typename X>
std::vector<Observation> observe(const Document& document, size_t progress, bool confirming,
                                 X x_of) {
    std::vector<Observation> result;
    for (size_t block = 0; block < document.blocks.size(); ++block) {
        if (document.blocks[block].confirms != confirming) continue;
        for (const Slice& slice : document.blocks[block].slices) {
            if (!is_usable(slice, progress)) continue;
            if (const std::optional<double> x = x_of(slice))
                result.push_back(
                    {block, middle_of(slice), *x, period_of(slice, progress),
                     kCountingError * period_of(slice, progress) / units_of(slice, progress)});
        }
    }
    return result;
}

double calls_per_unit(const Document& document, size_t progress, size_t target) {
    uint64_t calls = 0, units = 0;
    for (const Block& block : document.blocks)
        for (const Slice& slice : block.slices) {
            if (slice.calls.empty() || !is_usable(slice, progress)) continue;
            calls += slice.calls[target];
            units += slice.progress[progress];
        }
    return units > 0 ? static_cast<double>(calls) / static_cast<double>(units) : 0;
}

std::vector<Observation> observe_target(const Document& document, size_t progress, size_t target,
                                        bool confirming) {
    // Of few units a slice's own count would move dose and period alike, which looks like an
    // effect.
    const bool has_few_units = mean_units(document, progress) < kFewUnits;
    const double calls = calls_per_unit(document, progress, target);
    return observe(document, progress, confirming, [&](const Slice& slice) {
        const Arm& arm = slice.arm;
        if (arm.kind == ArmKind::kProbe) return std::optional<double>(0.0);
        if (arm.kind != ArmKind::kDose || arm.target != target) return std::optional<double>();
        if (!has_few_units || slice.calls[target] == 0)
            return std::optional<double>(dose_of(slice, progress));
        return std::optional<double>(ns(slice.injected) / static_cast<double>(slice.calls[target]) *
                                     calls);
    });
}

bool has_dose(const std::vector<Observation>& observations) {
    return std::any_of(observations.begin(), observations.end(),
                       [](const Observation& one) { return one.x > 0; });
}

// The same with each block's own level replaced by the common one and the drift taken out, so that
// all can stand in one plot.
std::vector<Observation> levelled(std::vector<Observation> observations, const Line& line) {
    std::map<size_t, std::vector<Observation*>> blocks;
    for (Observation& one : observations) blocks[one.block].push_back(&one);
    for (auto& [block, members] : blocks) {
        double level = 0, time = 0;
        for (const Observation* one : members) {
            level += (one->y - line.slope * one->x) / static_cast<double>(members.size());
            time += one->time / static_cast<double>(members.size());
        }
        for (Observation* one : members)
            one->y += line.base - level - line.drift * (one->time - time);
    }
    return observations;
}

Point mean_point(const std::vector<Observation>& group) {
    Point point;
    point.slices = group.size();
    const auto count = static_cast<double>(group.size());
    for (const Observation& one : group) {
        point.x += one.x / count;
        point.y += one.y / count;
    }
    double squares = 0;
    for (const Observation& one : group) squares += (one.y - point.y) * (one.y - point.y);
    if (group.size() > 1) point.y_error = std::sqrt(squares / (count - 1) / count);
    return point;
}

// How long the threads together waited for a CPU while no code was delayed, per time.
double waited_undelayed(const Document& document) {
    double waited = 0, length = 0;
    for (const Block& block : document.blocks)
        for (const Slice& slice : block.slices) {
            if (slice.arm.kind != ArmKind::kProbe) continue;
            waited += ns(slice.waited);
            length += ns(slice.length);
        }
    return length > 0 ? waited / length : 0;
}

// How much longer they waited with the target's delays, per injected time.
double waited_per_injected(const Document& document, size_t target) {
    double waited = 0, injected = 0, length = 0;
    for (const Block& block : document.blocks)
        for (const Slice& slice : block.slices) {
            if (slice.arm.kind != ArmKind::kDose || slice.arm.target != target) continue;
            waited += ns(slice.waited);
            length += ns(slice.length);
            injected += ns(slice.injected);
        }
    return injected > 0 ? (waited - waited_undelayed(document) * length) / injected : 0;
}

// The same of short slices, of all targets together.
double waited_in_slices(const Document& document) {
    if (!document.sliced) return 0;
    double injected = 0;
    for (const SlicedTarget& target : document.sliced->targets)
        for (const uint64_t one : target.injected_ns) injected += static_cast<double>(one);
    const double length =
        ns(document.sliced->slice) * static_cast<double>(document.sliced->slices());
    const double waited = ns(document.sliced->waited) - waited_undelayed(document) * length;
    return injected > 0 ? waited / injected : 0;
}

Estimate scaled(Estimate estimate, double factor) {
    estimate.value *= factor;
    estimate.error *= factor;
    for (Interval* interval : {&estimate.interval, &estimate.wide}) {
        interval->low *= factor;
        interval->high *= factor;
    }
    return estimate;
}

// Whether what was seen may have decided when it ended: it ended with --precision or by hand, or
// goes on still. With a time or number of blocks that was set before, each interval is looked at
// once.
bool may_stop_at_any_look(const Document& document) {
    return document.stopped != "time" && document.stopped != "blocks";
}

TargetResult examine(const Document& document, size_t progress, size_t target) {
    TargetResult result;
    result.target = target;
    result.calls_per_unit = calls_per_unit(document, progress, target);
    const auto observations = observe_target(document, progress, target, false);
    if (!has_dose(observations)) return result;
    result.waited = waited_per_injected(document, target);
    result.shape = fit_shape(observations, document.seed);
    result.blocks = result.shape.line.blocks;
    if (may_stop_at_any_look(document))
        result.shape.slope = anytime(result.shape.slope, result.blocks);
    result.p = result.shape.slope.p;
    result.observations = levelled(observations, result.shape.line.line);

    // By nominal dose, in the order of observe_target().
    std::map<int64_t, std::vector<Observation>> groups;
    size_t next = 0;
    for (const Block& block : document.blocks) {
        if (block.confirms) continue;
        for (const Slice& slice : block.slices) {
            const bool is_probe = slice.arm.kind == ArmKind::kProbe;
            const bool is_own = slice.arm.kind == ArmKind::kDose && slice.arm.target == target;
            if (!is_usable(slice, progress) || (!is_probe && !is_own)) continue;
            groups[is_probe ? 0 : slice.arm.delay.count()].push_back(result.observations[next++]);
        }
    }
    for (const auto& [dose, group] : groups) result.points.push_back(mean_point(group));

    const auto fresh = observe_target(document, progress, target, true);
    if (has_dose(fresh)) result.confirmed = estimate_line(fresh, document.seed).slope;
    return result;
}

double wanted_precision(const Document& document) {
    return document.settings.precision > 0 ? document.settings.precision : kDefaultPrecision;
}

Verdict verdict_of_blocks(const TargetResult& result, const Document& document) {
    const Estimate& k = result.shape.slope;
    const bool differs = result.p < kSignificant;
    const bool small = std::max(std::abs(k.interval.low), std::abs(k.interval.high)) <=
                       2 * wanted_precision(document);
    if (result.shape.shape == Shape::kHinge) // which is there for sure, and so is its slack
        return differs && result.shape.slack.wide.low > 0 ? Verdict::kHidden : Verdict::kUncertain;
    if (differs && !small) return Verdict::kMatters;
    return small ? Verdict::kHidden : Verdict::kUncertain;
}

Verdict verdict_of_slices(const TargetResult& result, Finding finding) {
    if (finding == Finding::kMatters && result.p < kSignificant) return Verdict::kMatters;
    return finding == Finding::kHidden ? Verdict::kHidden : Verdict::kUncertain;
}

// `finding`: of short slices.
void judge(TargetResult& result, const Document& document, std::optional<Finding> finding) {
    const double precision = wanted_precision(document);
    if (result.blocks == 0) return;
    const Estimate& k = result.shape.slope;
    if (k.interval.half_width() > precision)
        result.blocks_wanted = blocks_needed(result.blocks, k.interval.half_width(), precision);
    const bool differs = result.p < kSignificant;
    result.verdict =
        finding ? verdict_of_slices(result, *finding) : verdict_of_blocks(result, document);
    if (!differs && result.shape.shape == Shape::kLinear) result.shape.shape = Shape::kFlat;
    if (result.shape.shape == Shape::kLinear && result.calls_per_unit > 0)
        result.gain = scaled(k, kNsPerUs * result.calls_per_unit);
}

std::optional<Estimate> sham_of(const Document& document, size_t progress) {
    // It pretends to the largest dose that was really given.
    double largest = 0;
    for (const Block& block : document.blocks)
        for (const Slice& slice : block.slices)
            if (slice.arm.kind == ArmKind::kDose && is_usable(slice, progress))
                largest = std::max(largest, dose_of(slice, progress));
    if (largest <= 0) return std::nullopt;
    const auto observations = observe(document, progress, false, [&](const Slice& slice) {
        if (slice.arm.kind == ArmKind::kProbe) return std::optional<double>(0.0);
        if (slice.arm.kind == ArmKind::kSham) return std::optional<double>(largest);
        return std::optional<double>();
    });
    if (!has_dose(observations)) return std::nullopt;
    return estimate_line(observations, document.seed).slope;
}

std::optional<Estimate> looking_cost(const Document& document, size_t progress) {
    const auto observations = observe(document, progress, false, [](const Slice& slice) {
        if (slice.arm.kind == ArmKind::kOff) return std::optional<double>(0.0);
        if (slice.arm.kind == ArmKind::kProbe || slice.arm.kind == ArmKind::kSham)
            return std::optional<double>(1.0);
        return std::optional<double>();
    });
    const bool has_off = std::any_of(observations.begin(), observations.end(),
                                     [](const Observation& one) { return one.x == 0; });
    if (!has_off || !has_dose(observations)) return std::nullopt;
    return estimate_line(observations, document.seed).slope;
}

std::vector<LatencyRow> latencies_of(const Document& document, size_t progress) {
    struct Samples {
        Arm arm;
        std::vector<double> p50, p90, p99;
    };
    std::map<std::tuple<ArmKind, size_t, int64_t>, Samples> groups;
    for (const Block& block : document.blocks)
        for (const Slice& slice : block.slices) {
            const auto& latency = slice.latency.at(progress);
            if (!latency) continue;
            const Arm& arm = slice.arm;
            Samples& samples = groups[{arm.kind, arm.target, arm.delay.count()}];
            samples.arm = arm;
            samples.p50.push_back(ns(latency->p50));
            samples.p90.push_back(ns(latency->p90));
            samples.p99.push_back(ns(latency->p99));
        }
    std::vector<LatencyRow> rows;
    const auto middle = [](const std::vector<double>& values) {
        return nanoseconds(static_cast<int64_t>(median(values)));
    };
    for (const auto& [key, samples] : groups)
        rows.push_back(
            {samples.arm, {middle(samples.p50), middle(samples.p90), middle(samples.p99)}});
    return rows;
}

// The targets, and what else the slices tell; the findings, by target.
std::vector<Finding> add_slices(ProgressResult& result, const Document& document) {
    const SlicedResult sliced =
        examine_slices(document, result.progress, may_stop_at_any_look(document));
    if (sliced.blocks > 0) {
        result.period = sliced.period;
        result.slices += document.sliced->slices();
        result.arrives_within = sliced.response.lags + 1;
        result.arrived = sliced.response.arrived;
        result.arrives_later = sliced.response.is_cut;
    }
    result.sham = sliced.sham;
    result.targets = sliced.targets;
    for (const Pair& pair : sliced.pairs) result.pairs.emplace_back(pair.first, pair.second);
    return sliced.findings;
}

void check_controls(Results& results, const Document& document) {
    for (const ProgressResult& progress : results.progress) {
        const std::string& name = document.progress[progress.progress];
        if (progress.slices == 0 || (document.sliced && !progress.sham)) {
            results.invalid_because.push_back(nothing_known(document, progress.progress));
            continue;
        }
        if (!progress.sham) {
            results.invalid_because.push_back("no block was long enough for the sham target");
        } else if (!progress.sham->wide.contains(0) && progress.sham->p < kShamAlarm) {
            results.invalid_because.push_back(
                "the sham target, which delays nothing, seems to matter for " + name +
                ": other things changed with the arms");
        }
        for (const TargetResult& target : progress.targets) {
            if (document.targets[target.target].role != Role::kPositive) continue;
            const Estimate& k = target.shape.slope;
            const bool near = std::abs(k.value - 1) <= kPositiveTolerance || k.wide.contains(1);
            if (target.blocks == 0 || k.interval.contains(0) || !near)
                results.invalid_because.push_back(
                    "the positive control " + document.targets[target.target].name +
                    " does not show a criticality near 1 for " + name);
        }
    }
}

} // namespace

std::string to_string(Verdict verdict) {
    switch (verdict) {
        case Verdict::kMatters:
            return "matters";
        case Verdict::kHidden:
            return "hidden";
        case Verdict::kUncertain:
            return "uncertain";
        case Verdict::kUnknown:
            return "unknown";
    }
    return "unknown";
}

ProgressResult examine_progress(const Document& document, size_t progress) {
    ProgressResult result;
    result.progress = progress;
    std::vector<double> periods;
    for (const Block& block : document.blocks)
        for (const Slice& slice : block.slices) {
            if (!is_usable(slice, progress)) continue;
            ++result.slices;
            if (slice.arm.kind == ArmKind::kProbe) periods.push_back(period_of(slice, progress));
        }
    result.period = median(std::move(periods));
    result.looking = looking_cost(document, progress);
    std::vector<Finding> findings;
    if (document.sliced) {
        findings = add_slices(result, document);
    } else {
        result.sham = sham_of(document, progress);
        for (size_t target = 0; target < document.targets.size(); ++target)
            result.targets.push_back(examine(document, progress, target));
    }
    std::vector<double> p;
    for (const TargetResult& target : result.targets) p.push_back(target.p);
    const std::vector<double> corrected = holm(p);
    for (size_t i = 0; i < corrected.size(); ++i) {
        result.targets[i].p = corrected[i];
        judge(result.targets[i], document,
              findings.empty() ? std::nullopt : std::optional(findings[i]));
        if (result.targets[i].blocks > 0 && has_too_few_units(document, progress))
            result.targets[i].verdict = Verdict::kUncertain;
    }
    // What matters first; beyond a slack is less than from the first ns on.
    const auto rank = [&](const TargetResult& target) {
        const bool positive = document.targets[target.target].role == Role::kPositive;
        const bool hinge = target.shape.shape == Shape::kHinge;
        return std::make_tuple(positive, target.blocks == 0, hinge, -target.shape.slope.value);
    };
    std::stable_sort(
        result.targets.begin(), result.targets.end(),
        [&](const TargetResult& a, const TargetResult& b) { return rank(a) < rank(b); });
    result.latencies = latencies_of(document, progress);
    return result;
}

Results analyse(const Document& document) {
    Results results;
    for (size_t progress = 0; progress < document.progress.size(); ++progress)
        if (progress == 0 || !is_device(document, progress)) // it tells of others' units
            results.progress.push_back(examine_progress(document, progress));
    results.devices = examine_devices(document);
    if (document.fleet) results.hosts = examine_hosts(document, results.progress[0]);
    check_controls(results, document);
    results.valid = results.invalid_because.empty();
    return results;
}

std::vector<std::string> contention_warnings(const Document& document) {
    std::vector<std::string> warnings;
    if (const double waited = waited_undelayed(document); waited > kContention)
        warnings.push_back(fmt::format(
            "threads of the service waited {:.2f} s for a CPU in each second, also without delays: "
            "other load, or more threads than CPUs; intervals are wider for it",
            waited));
    for (size_t target = 0; target < document.targets.size(); ++target) {
        const double waited = waited_per_injected(document, target);
        if (waited > kContention)
            warnings.push_back(fmt::format(
                "{}: delays hold a CPU, and for each ms of them threads of the service waited "
                "{:.2f} ms for one; its criticality includes that",
                document.targets[target].name, waited));
    }
    if (const double waited = waited_in_slices(document); waited > kContention)
        warnings.push_back(
            fmt::format("delays hold a CPU, and for each ms of them threads of the service waited "
                        "{:.2f} ms for "
                        "one; criticalities include that",
                        waited));
    return warnings;
}

std::vector<std::string> counting_warnings(const Document& document) {
    std::vector<std::string> warnings;
    for (size_t progress = 0; progress < document.progress.size(); ++progress)
        if (!is_device(document, progress) && has_too_few_units(document, progress))
            warnings.push_back(fmt::format(
                "a slice has {:.1f} units of {} on average, of which nothing can be concluded: "
                "take a longer --slice, or a progress point that ticks more often",
                mean_units(document, progress), document.progress[progress]));
    return warnings;
}

bool is_precise(const Document& document, double precision) {
    if (document.sliced) return look_at_slices(document, precision).is_precise;
    for (size_t target = 0; target < document.targets.size(); ++target) {
        const auto observations = observe_target(document, 0, target, false);
        if (!has_dose(observations)) continue;
        const ShapeEstimate shape = fit_shape(observations, document.seed);
        if (anytime(shape.slope, shape.line.blocks).interval.half_width() > precision) return false;
    }
    return true;
}

} // namespace speedbump::experiment
