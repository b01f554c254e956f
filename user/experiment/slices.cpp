// SPDX-License-Identifier: MIT
#include "experiment/slices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "experiment/anytime.h"
#include "experiment/model/parts.h"
#include "util/units.h"

namespace speedbump::experiment {

namespace {

constexpr double kShamShare = 0.1; // of a slice, that its full dose pretends to take
// Of the precision asked for: by noise alone so narrow is an interval that may reach to none.
constexpr double kPreciseByNoise = 1.0 / 3;

TargetSlices table_of(const SlicedTarget& target) {
    TargetSlices table;
    table.steps = target.steps;
    table.injected.assign(target.injected_ns.begin(), target.injected_ns.end());
    for (const uint64_t delays : target.delays)
        table.delays.push_back(static_cast<double>(delays) / target.hosts);
    return table;
}

TargetSlices sham_of(const SlicedRun& run, uint64_t seed, size_t target) {
    TargetSlices sham;
    for (size_t stage = 0; sham.steps.size() < run.units.size(); ++stage)
        for (const Step& step : stage_of(seed, target, stage, run.chance))
            sham.steps.push_back(step);
    sham.steps.resize(run.units.size());
    for (const Step& step : sham.steps) {
        sham.injected.push_back(step.on ? kShamShare * share_of(step.level) * run.slice_ns : 0);
        sham.delays.push_back(step.on ? 1 : 0);
    }
    return sham;
}

ShapeEstimate shape_of(const Effect& effect, double calls_per_unit) {
    ShapeEstimate shape;
    shape.shape = effect.shape;
    shape.slope = effect.shape == Shape::kHinge ? effect.beyond : effect.criticality;
    if (effect.shape != Shape::kHinge) return shape;
    shape.slack = effect.slack; // of one call
    for (double* value : {&shape.slack.value, &shape.slack.error, &shape.slack.interval.low,
                          &shape.slack.interval.high})
        *value *= calls_per_unit;
    return shape;
}

// What each of its doses did.
std::vector<Point> points_of(const Regression& regression, size_t target) {
    std::vector<Point> points = {{0, regression.period, 0, 0}};
    for (size_t i = 0; i < regression.cells.size(); ++i) {
        const Cell& cell = regression.cells[i];
        if (cell.target != target) continue;
        points.push_back({cell.per_unit, regression.period + cell.criticality * cell.per_unit,
                          std::sqrt(regression.covariance(i, i)) * cell.per_unit, cell.slices});
    }
    return points;
}

// As a table of the model, for one progress point. Of the targets with a dose, in their order, and
// last a sham: one that delays nothing, drawn like the others and taken for one of them.
struct ModelRun {
    SlicedRun run;
    std::vector<size_t> targets; // of the document: of each of the run's but the sham
};

ModelRun model_run(const Document& document, size_t progress) {
    const Sliced& sliced = *document.sliced;
    ModelRun result;
    SlicedRun& run = result.run;
    run.slice_ns = static_cast<double>(sliced.slice.count());
    run.chance = sliced.chance;
    run.units.assign(sliced.units[progress].begin(), sliced.units[progress].end());
    for (size_t target = 0; target < sliced.targets.size(); ++target) {
        if (sliced.targets[target].dose.count() == 0) continue;
        run.targets.push_back(table_of(sliced.targets[target]));
        result.targets.push_back(target);
    }
    run.targets.push_back(sham_of(run, document.seed, sliced.targets.size()));
    if (!sliced.since_ns.empty()) count_parts(run, sliced.since_ns[progress]);
    return result;
}

// Hosts that are slowed one at a time may wait for each other.
EffectLimits limits_of(const Document& document) {
    EffectLimits limits;
    limits.may_wait = document.fleet && document.fleet->each;
    return limits;
}

// However often it was looked at; what the interval reaches to besides, such as none where there
// may be a slack, it goes on to reach to.
Estimate at_any_look_of(const Estimate& estimate, size_t blocks, double freedom) {
    Estimate result = anytime(estimate, blocks, freedom);
    const auto reach = [](Interval& interval, const Interval& other) {
        interval = {std::min(interval.low, other.low), std::max(interval.high, other.high)};
    };
    reach(result.interval, estimate.interval);
    reach(result.wide, estimate.wide);
    return result;
}

struct Fitted {
    ModelRun model;
    Response response;
    Regression regression;
};

Fitted fit(const Document& document, size_t progress) {
    Fitted fitted;
    fitted.model = model_run(document, progress);
    fitted.response = find_response(fitted.model.run);
    fitted.regression = regress(fitted.model.run, fitted.response);
    return fitted;
}

// Of units that were moved later.
Response from_own_slice(Response response, size_t lead) {
    response.lags -= std::min(response.lags, lead);
    std::vector<double>& arrived = response.arrived;
    const size_t before = std::min(lead, std::max<size_t>(arrived.size(), 1) - 1);
    arrived.erase(arrived.begin(), arrived.begin() + static_cast<ptrdiff_t>(before));
    return response;
}

SlicedResult examine(const Document& document, size_t progress, const Fitted& fitted,
                     bool at_any_look) {
    const ModelRun& model = fitted.model;
    const Regression& regression = fitted.regression;
    SlicedResult result;
    result.response = from_own_slice(fitted.response, model.run.lead);
    result.period = regression.period;
    result.blocks = regression.blocks;
    result.findings.resize(document.targets.size(), Finding::kSilent);
    uint64_t units = 0;
    for (const uint64_t one : document.sliced->units[progress]) units += one;
    for (size_t target = 0; target < document.targets.size(); ++target) {
        TargetResult& one = result.targets.emplace_back();
        one.target = target;
        const SlicedTarget& sliced = document.sliced->targets[target];
        const double calls = static_cast<double>(sliced.calls) / sliced.hosts;
        if (units > 0) one.calls_per_unit = calls / static_cast<double>(units);
    }
    const auto look = [&](const Estimate& estimate, double freedom) {
        return at_any_look ? at_any_look_of(estimate, regression.blocks, freedom) : estimate;
    };
    for (const Effect& effect : find_effects(regression, limits_of(document))) {
        if (effect.target == model.targets.size()) {
            result.sham = effect.criticality;
            continue;
        }
        const size_t target = model.targets[effect.target];
        TargetResult& one = result.targets[target];
        one.shape = shape_of(effect, one.calls_per_unit);
        one.shape.slope = look(one.shape.slope, effect.freedom);
        one.shape.base = regression.period;
        one.blocks = regression.blocks;
        one.p = one.shape.slope.p;
        one.points = points_of(regression, effect.target);
        result.findings[target] = effect.finding;
        if (fitted.response.is_cut && effect.finding == Finding::kHidden)
            result.findings[target] = Finding::kOpen; // what comes later was not seen
    }
    for (const Pair& pair : regression.pairs)
        if (std::max(pair.first, pair.second) < model.targets.size())
            result.pairs.push_back(
                {model.targets[pair.first], model.targets[pair.second], pair.change, pair.error});
    return result;
}

} // namespace

SlicedResult examine_slices(const Document& document, size_t progress, bool at_any_look) {
    return examine(document, progress, fit(document, progress), at_any_look);
}

std::vector<double> units_by_slice(const Document& document, size_t progress) {
    return model_run(document, progress).run.units;
}

SlicedLook look_at_slices(const Document& document, double precision) {
    const Fitted fitted = fit(document, 0);
    const SlicedResult result = examine(document, 0, fitted, true);
    const auto is_precise = [&](const TargetResult& target) {
        const Estimate& slope = target.shape.slope;
        if (target.blocks == 0 || slope.interval.half_width() <= precision) return true;
        const Interval by_noise = anytime(slope, result.blocks).interval;
        return by_noise.half_width() <= precision * kPreciseByNoise;
    };
    const bool are_precise = result.blocks > 0 && fitted.response.is_known &&
                             std::all_of(result.targets.begin(), result.targets.end(), is_precise);
    return {are_precise, bends(fitted.regression, limits_of(document)), result.response.is_late()};
}

bool is_late_after(const Document& document, size_t from) {
    SlicedRun run = model_run(document, 0).run;
    if (run.units.size() < from + Response::kFewestKnown) return false;
    const auto cut = [from](auto& values) {
        values.erase(values.begin(), values.begin() + static_cast<ptrdiff_t>(from));
    };
    cut(run.units);
    for (TargetSlices& target : run.targets) {
        cut(target.steps);
        cut(target.injected);
        cut(target.delays);
    }
    return from_own_slice(find_response(run), run.lead).is_late();
}

std::string nothing_known(const Document& document, size_t progress) {
    const std::string& name = document.progress[progress];
    const auto ticks = [](uint64_t units) { return units > 0; };
    if (!document.sliced || std::ranges::none_of(document.sliced->units[progress], ticks))
        return name + " never ticked while it was measured";
    const nanoseconds slice = document.sliced->slice;
    const ModelRun model = model_run(document, progress);
    const Response response = find_response(model.run);
    const size_t wanted = fewest_slices(response.lags) + model.run.lead;
    const size_t late = from_own_slice(response, model.run.lead).lags;
    std::string text = fmt::format("{} slices of {} tell nothing of {} yet",
                                   document.sliced->slices(), show_time(slice), name);
    if (document.sliced->slices() >= wanted) return text + ": measure for longer";
    if (fewest_slices(late) > fewest_slices(0))
        text += fmt::format("; effects seem to come up to {} slices late", late);
    return text + fmt::format(": it takes {} of them, {} without what comes before", wanted,
                              show_time(slice * static_cast<int64_t>(wanted)));
}

} // namespace speedbump::experiment
