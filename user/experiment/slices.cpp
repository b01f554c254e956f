// SPDX-License-Identifier: MIT
#include "experiment/slices.h"

#include <algorithm>
#include <cmath>

#include "experiment/anytime.h"

namespace speedbump::experiment {

namespace {

constexpr double kShamShare = 0.1; // of a slice, that its full dose pretends to take

TargetSlices table_of(const SlicedTarget& target) {
    TargetSlices table;
    table.steps = target.steps;
    table.injected.assign(target.injected_ns.begin(), target.injected_ns.end());
    for (const uint64_t delays : target.delays)
        table.delays.push_back(static_cast<double>(delays) / target.hosts);
    return table;
}

TargetSlices sham_of(uint64_t seed, size_t target, size_t slices, double slice_ns) {
    TargetSlices sham;
    for (size_t stage = 0; sham.steps.size() < slices; ++stage)
        for (const Step& step : stage_of(seed, target, stage)) sham.steps.push_back(step);
    sham.steps.resize(slices);
    for (const Step& step : sham.steps) {
        sham.injected.push_back(step.on ? kShamShare * share_of(step.level) * slice_ns : 0);
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
    run.units.assign(sliced.units[progress].begin(), sliced.units[progress].end());
    for (size_t target = 0; target < sliced.targets.size(); ++target) {
        if (sliced.targets[target].dose.count() == 0) continue;
        run.targets.push_back(table_of(sliced.targets[target]));
        result.targets.push_back(target);
    }
    run.targets.push_back(
        sham_of(document.seed, sliced.targets.size(), run.units.size(), run.slice_ns));
    return result;
}

} // namespace

SlicedResult examine_slices(const Document& document, size_t progress, bool at_any_look) {
    const ModelRun model = model_run(document, progress);
    SlicedResult result;
    result.response = find_response(model.run);
    const Regression regression = regress(model.run, result.response);
    result.period = regression.period;
    result.blocks = regression.blocks;
    result.findings.resize(document.targets.size(), Finding::kSilent);
    double units = 0;
    for (const double one : model.run.units) units += one;
    for (size_t target = 0; target < document.targets.size(); ++target) {
        TargetResult& one = result.targets.emplace_back();
        one.target = target;
        const SlicedTarget& sliced = document.sliced->targets[target];
        const double calls = static_cast<double>(sliced.calls) / sliced.hosts;
        if (units > 0) one.calls_per_unit = calls / units;
    }
    const auto look = [&](const Estimate& estimate) {
        return at_any_look ? anytime(estimate, regression.blocks) : estimate;
    };
    for (const Effect& effect : find_effects(regression, {})) {
        if (effect.target == model.targets.size()) {
            result.sham = effect.criticality;
            continue;
        }
        const size_t target = model.targets[effect.target];
        TargetResult& one = result.targets[target];
        one.shape = shape_of(effect, one.calls_per_unit);
        one.shape.slope = look(one.shape.slope);
        one.shape.base = regression.period;
        one.blocks = regression.blocks;
        one.p = one.shape.slope.p;
        one.points = points_of(regression, effect.target);
        result.findings[target] = effect.finding;
    }
    for (const Pair& pair : regression.pairs)
        if (std::max(pair.first, pair.second) < model.targets.size())
            result.pairs.push_back(
                {model.targets[pair.first], model.targets[pair.second], pair.change, pair.error});
    return result;
}

} // namespace speedbump::experiment
