// SPDX-License-Identifier: MIT
#include "experiment/model/rows.h"

#include <algorithm>
#include <utility>

namespace speedbump::experiment {

namespace {

constexpr size_t kWindow = 12; // slices to either side that the level of the pace is taken from
constexpr double kFewestDelays = 100; // of a cell, where calls are rare:
constexpr double kRareCalls = 0.5;    // fewer in a slice with the dose

// Sums over a window of slices to either side of each one.
std::vector<double> windowed(const std::vector<double>& values, size_t reach) {
    std::vector<double> sums = {0};
    for (const double value : values) sums.push_back(sums.back() + value);
    std::vector<double> result(values.size());
    for (size_t i = 0; i < values.size(); ++i)
        result[i] = sums[std::min(values.size(), i + reach + 1)] - sums[i < reach ? 0 : i - reach];
    return result;
}

// Of each value this share 0, 1, ... slices later.
std::vector<double> delayed(const std::vector<double>& values, const std::vector<double>& shares) {
    std::vector<double> result(values.size());
    for (size_t lag = 0; lag < shares.size(); ++lag)
        for (size_t i = lag; i < values.size(); ++i) result[i] += shares[lag] * values[i - lag];
    return result;
}

// Of the effect, by lag.
std::vector<double> shares_of(const Response& response) {
    std::vector<double> shares;
    for (const double arrived : response.arrived)
        shares.push_back(arrived - (shares.empty() ? 0 : response.arrived[shares.size() - 1]));
    return shares.empty() ? std::vector<double>{1} : shares;
}

// One level of a target, or several together.
struct Part {
    Cell cell;
    std::vector<double> injected_ns, drawn;     // by slice
    double injected = 0, delays = 0, units = 0; // units: of slices with the dose
};

Part part_of(const SlicedRun& run, size_t target, size_t level) {
    const TargetSlices& slices = run.targets[target];
    Part part{{target, level},
              std::vector<double>(run.units.size()),
              std::vector<double>(run.units.size())};
    for (size_t i = 0; i < run.units.size(); ++i) {
        const Step& step = slices.steps[i];
        if (step.level != level) continue;
        // Where levels are one cell, the larger doses tell more.
        part.drawn[i] = drawn_at(step, run.chance);
        part.injected_ns[i] = slices.injected[i];
        part.injected += slices.injected[i];
        part.delays += slices.delays[i];
        if (!step.on) continue;
        part.units += run.units[i];
        ++part.cell.slices;
    }
    return part;
}

// What `from` has joins `to`.
void join(Part& to, const Part& from) {
    for (size_t i = 0; i < to.drawn.size(); ++i) {
        to.drawn[i] += from.drawn[i];
        to.injected_ns[i] += from.injected_ns[i];
    }
    to.injected += from.injected;
    to.delays += from.delays;
    to.units += from.units;
    to.cell.slices += from.cell.slices;
    to.cell.level = std::max(to.cell.level, from.cell.level);
}

// Too few calls were met to tell their noise. Few slices are no reason: what a level alone has to
// say of a slack would be lost.
bool is_hardly_met(const Part& part) {
    return part.delays < kFewestDelays &&
           part.delays < kRareCalls * static_cast<double>(part.cell.slices);
}

} // namespace

void collect(const SlicedRun& run, std::vector<Cell>& cells, std::vector<Column>& columns) {
    for (size_t target = 0; target < run.targets.size(); ++target) {
        std::vector<Part> parts;
        for (size_t level = 1; level <= kLevels; ++level) {
            Part part = part_of(run, target, level);
            if (part.injected <= 0 || part.delays <= 0 || part.units <= 0) continue;
            if (!parts.empty() && is_hardly_met(parts.back()))
                join(parts.back(), part);
            else
                parts.push_back(std::move(part));
        }
        if (parts.size() > 1 && is_hardly_met(parts.back())) {
            join(parts[parts.size() - 2], parts.back());
            parts.pop_back();
        }
        for (Part& part : parts) {
            part.cell.per_unit = part.injected / part.units;
            part.cell.per_call = part.injected / part.delays;
            cells.push_back(part.cell);
            columns.push_back({Strip(part.injected_ns), Strip(part.drawn)});
        }
    }
}

std::vector<double> left_of(const SlicedRun& run, size_t reach) {
    const size_t slices = run.units.size();
    const std::vector<double> units = windowed(run.units, reach);
    std::vector<double> left(slices);
    for (size_t i = 0; i < slices; ++i) {
        if (!(units[i] > 0)) continue;
        const size_t begin = i < reach ? 0 : i - reach;
        const size_t around = std::min(slices, i + reach + 1) - begin;
        left[i] = run.slice_ns * (1 - run.units[i] / units[i] * static_cast<double>(around));
    }
    return left;
}

Rows rows_of(const SlicedRun& run, const std::vector<Column>& columns, const Response& response) {
    const size_t slices = run.units.size();
    const size_t reach = kWindow + 2 * response.lags;
    const std::vector<double> shares = shares_of(response);
    const std::vector<double> units = windowed(run.units, reach);
    Rows rows{left_of(run, reach), {}};
    for (const Column& column : columns) {
        std::vector<double> right = delayed(column.injected.all(slices), shares);
        const std::vector<double> around = windowed(right, reach);
        for (size_t i = 0; i < slices; ++i)
            right[i] = units[i] > 0 ? right[i] - run.units[i] / units[i] * around[i] : 0;
        rows.right.emplace_back(right);
    }
    return rows;
}

Strip reaching(const Strip& drawn, size_t slices, size_t lags) {
    const std::vector<double> all = drawn.all(slices);
    std::vector<double> result(slices);
    double sum = 0;
    for (size_t i = 0; i < slices; ++i) {
        sum += all[i];
        if (i > lags) sum -= all[i - lags - 1];
        result[i] = sum;
    }
    return Strip(result);
}

} // namespace speedbump::experiment
