// SPDX-License-Identifier: MIT
#include "experiment/model/interplay.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>

#include "experiment/model/limit.h"

namespace speedbump::experiment {

namespace {

constexpr double kPairChance = 0.005; // that noise looks like a pair, of a run

double share_at(const Step& step) {
    return step.on ? share_of(step.level) : 0;
}

// What was drawn for each target, as in Column; of both of a pair it is the product.
std::vector<std::vector<double>> draws_of(const SlicedRun& run) {
    std::vector<std::vector<double>> draws;
    for (const TargetSlices& target : run.targets) {
        std::vector<double>& drawn = draws.emplace_back();
        for (const Step& step : target.steps) drawn.push_back(drawn_at(step, run.chance));
    }
    return draws;
}

// What is left of the slice in which something was drawn, and of the `lags` ones after it.
std::vector<double> ahead_of(const std::vector<double>& rest, size_t lags) {
    std::vector<double> ahead(rest.size());
    double sum = 0;
    for (size_t i = rest.size(); i-- > 0;) {
        sum += rest[i];
        if (i + lags + 1 < rest.size()) sum -= rest[i + lags + 1];
        ahead[i] = sum;
    }
    return ahead;
}

// By block, the sum of the products of two numbers of each slice.
std::vector<double> products(const std::vector<double>& a, const std::vector<double>& b,
                             size_t block_slices) {
    std::vector<double> blocks;
    for (size_t begin = 0; begin < a.size(); begin += block_slices) {
        const size_t end = std::min(a.size(), begin + block_slices);
        blocks.push_back(
            std::transform_reduce(a.data() + begin, a.data() + end, b.data() + begin, 0.0));
    }
    return blocks;
}

Column column_of(const SlicedRun& run, const Pair& pair, const std::vector<double>& drawn) {
    const TargetSlices& first = run.targets[pair.first];
    const TargetSlices& second = run.targets[pair.second];
    std::vector<double> injected(run.units.size());
    for (size_t i = 0; i < injected.size(); ++i)
        injected[i] = first.injected[i] * share_at(second.steps[i]);
    return {Strip(injected), Strip(drawn)};
}

// By how much a pair's first one matters more with the second one's full dose, whose blocks add up
// to this; nullopt where both never had a dose together.
std::optional<double> change_of(const SlicedRun& run, const Pair& pair,
                                const std::vector<double>& drawn, const Response& response,
                                double sum) {
    const Column column = column_of(run, pair, drawn);
    const Rows rows = rows_of(run, {column}, response);
    const double common =
        reaching(column.drawn, run.units.size(), response.lags).times(rows.right[0]);
    if (common == 0) return std::nullopt;
    return sum / common;
}

// The highest level of any dose in each block.
std::vector<size_t> levels_of(const SlicedRun& run, size_t block_slices) {
    std::vector<size_t> levels;
    for (size_t i = 0; i < run.units.size(); ++i) {
        if (i % block_slices == 0) levels.push_back(0);
        for (const TargetSlices& target : run.targets)
            levels.back() = std::max<size_t>(levels.back(), target.steps[i].level);
    }
    return levels;
}

// How far a sum over blocks of no higher level is from 0, in standard errors.
ByLevel standing_out(const std::vector<double>& blocks, const std::vector<size_t>& levels) {
    ByLevel sum{}, squares{}, result{};
    for (size_t block = 0; block < blocks.size(); ++block)
        for (size_t level = levels[block]; level <= kLevels; ++level) {
            sum[level] += blocks[block];
            squares[level] += blocks[block] * blocks[block];
        }
    for (size_t level = 0; level <= kLevels; ++level)
        if (squares[level] > 0) result[level] = std::abs(sum[level]) / std::sqrt(squares[level]);
    return result;
}

void keep_larger(ByLevel& most, const ByLevel& values) {
    for (size_t level = 0; level <= kLevels; ++level)
        most[level] = std::max(most[level], values[level]);
}

} // namespace

void look_at_pairs(const SlicedRun& run, const std::vector<double>& rest, const Response& response,
                   size_t block_slices, Regression& into) {
    const size_t targets = run.targets.size(), slices = run.units.size();
    const std::vector<size_t> levels = levels_of(run, block_slices);
    const std::vector<std::vector<double>> draws = draws_of(run);
    const std::vector<double> ahead = ahead_of(rest, response.lags);
    const double stands_out = limit_of(kPairChance, targets * (targets - 1) / 2);
    into.together.assign(targets, {});
    into.looked_at = targets; // the others of each, and all of them
    std::vector<std::vector<double>> all(targets, std::vector<double>(levels.size()));
    std::vector<double> first_ahead(slices);
    for (size_t first = 0; first < targets; ++first) {
        std::transform(ahead.begin(), ahead.end(), draws[first].begin(), first_ahead.begin(),
                       std::multiplies<>());
        for (size_t second = first + 1; second < targets; ++second) {
            const std::vector<double> blocks = products(first_ahead, draws[second], block_slices);
            for (const size_t target : {first, second})
                std::transform(blocks.begin(), blocks.end(), all[target].begin(),
                               all[target].begin(), std::plus<>());
            const ByLevel by_level = standing_out(blocks, levels);
            keep_larger(into.together[first], by_level);
            keep_larger(into.together[second], by_level);
            if (by_level[kLevels] <= stands_out) continue;
            Pair pair{first, second, 0, 0};
            std::vector<double> drawn(slices);
            std::transform(draws[first].begin(), draws[first].end(), draws[second].begin(),
                           drawn.begin(), std::multiplies<>());
            const double sum = std::accumulate(blocks.begin(), blocks.end(), 0.0);
            const auto change = change_of(run, pair, drawn, response, sum);
            if (!change) continue;
            pair.change = *change;
            pair.error = std::abs(pair.change) / by_level[kLevels];
            into.pairs.push_back(pair);
        }
    }
    for (size_t target = 0; target < targets; ++target)
        keep_larger(into.together[target], standing_out(all[target], levels));
}

} // namespace speedbump::experiment
