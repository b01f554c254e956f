// SPDX-License-Identifier: MIT
#include "experiment/statistics.h"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <random>

#include "util/numbers.h"

namespace speedbump::experiment {

namespace {

constexpr double kHuber = 1.345; // 95 % efficient where nothing is disturbed
constexpr double kMadToSigma = 1.4826;
constexpr int kMaxIterations = 50;
constexpr size_t kReplicates = 1000;
constexpr size_t kSlackSteps = 48;
constexpr double kHingeChiSquare = 9.21; // 1 % point, 2 degrees of freedom

// Weighted sums of one block around its own means: they add up over blocks, which is all that a
// bootstrap over blocks needs.
struct Sums {
    double xx = 0, xy = 0, xt = 0, tt = 0, ty = 0, yy = 0;

    Sums& operator+=(const Sums& other) {
        xx += other.xx;
        xy += other.xy;
        xt += other.xt;
        tt += other.tt;
        ty += other.ty;
        yy += other.yy;
        return *this;
    }
};

struct Slopes {
    double x = 0;
    double t = 0;
};

Slopes solve(const Sums& sums) {
    const double determinant = sums.xx * sums.tt - sums.xt * sums.xt;
    const bool has_x = sums.xx > 0;
    if (has_x && determinant > 1e-9 * sums.xx * sums.tt)
        return {(sums.xy * sums.tt - sums.ty * sums.xt) / determinant,
                (sums.ty * sums.xx - sums.xy * sums.xt) / determinant};
    if (has_x) return {sums.xy / sums.xx, 0};
    return {0, sums.tt > 0 ? sums.ty / sums.tt : 0};
}

// What slopes leave of the weighted squares.
double unexplained(const Sums& sums) {
    const Slopes slopes = solve(sums);
    return std::max(0.0, sums.yy - slopes.x * sums.xy - slopes.t * sums.ty);
}

// The observations of each block, as indexes.
std::vector<std::vector<size_t>> group(std::span<const Observation> observations) {
    std::map<size_t, std::vector<size_t>> by_block;
    for (size_t i = 0; i < observations.size(); ++i) by_block[observations[i].block].push_back(i);
    std::vector<std::vector<size_t>> blocks;
    for (auto& [block, members] : by_block) blocks.push_back(std::move(members));
    return blocks;
}

struct Means {
    double x = 0, y = 0, t = 0;
};

template <typename X>
Means block_means(std::span<const Observation> observations, const std::vector<size_t>& block,
                  const std::vector<double>& weights, X x_of) {
    Means means;
    double total = 0;
    for (const size_t i : block) {
        total += weights[i];
        means.x += weights[i] * x_of(observations[i].x);
        means.y += weights[i] * observations[i].y;
        means.t += weights[i] * observations[i].time;
    }
    if (total > 0) {
        means.x /= total;
        means.y /= total;
        means.t /= total;
    }
    return means;
}

template <typename X>
std::vector<Sums> block_sums(std::span<const Observation> observations,
                             const std::vector<std::vector<size_t>>& blocks,
                             const std::vector<double>& weights, X x_of) {
    std::vector<Sums> result;
    for (const std::vector<size_t>& block : blocks) {
        const Means means = block_means(observations, block, weights, x_of);
        Sums sums;
        for (const size_t i : block) {
            const double x = x_of(observations[i].x) - means.x;
            const double y = observations[i].y - means.y;
            const double t = observations[i].time - means.t;
            sums.xx += weights[i] * x * x;
            sums.xy += weights[i] * x * y;
            sums.xt += weights[i] * x * t;
            sums.tt += weights[i] * t * t;
            sums.ty += weights[i] * t * y;
            sums.yy += weights[i] * y * y;
        }
        result.push_back(sums);
    }
    return result;
}

Sums total(const std::vector<Sums>& blocks) {
    return std::accumulate(blocks.begin(), blocks.end(), Sums{},
                           [](Sums sum, const Sums& block) { return sum += block; });
}

// Huber's loss, twice, so that it is the square where nothing is disturbed.
double loss_of(double residual, double scale) {
    const double r = std::abs(residual) / scale;
    return r <= kHuber ? r * r : kHuber * (2 * r - kHuber);
}

// Of one observation, of what is counted in whole units. The median: in a slice that was nearly
// stalled a unit is worth so much that an average would be its alone.
double counting_error(std::span<const Observation> observations) {
    std::vector<double> errors;
    for (const Observation& one : observations) errors.push_back(one.y_error);
    return errors.empty() ? 0 : median(std::move(errors));
}

// `fixed_scale`: take this one instead of the residuals' own.
template <typename X>
Line fit(std::span<const Observation> observations, const std::vector<std::vector<size_t>>& blocks,
         X x_of, std::optional<double> fixed_scale = {}) {
    Line line;
    line.weights.assign(observations.size(), 1.0);
    std::vector<double> residuals(observations.size());
    const size_t parameters = blocks.size() + 2;
    const double freedom = observations.size() > parameters
                               ? static_cast<double>(observations.size() - parameters)
                               : 1.0;
    // Most slices may have the same number of units: the others are not disturbed by that.
    const double least_scale = counting_error(observations);
    for (int iteration = 0; iteration < kMaxIterations; ++iteration) {
        const Slopes before{line.slope, line.drift};
        const Slopes slopes = solve(total(block_sums(observations, blocks, line.weights, x_of)));
        line.slope = slopes.x;
        line.drift = slopes.t;
        line.base = 0;
        for (const std::vector<size_t>& block : blocks) {
            const Means means = block_means(observations, block, line.weights, x_of);
            line.base += (means.y - slopes.x * means.x) / static_cast<double>(blocks.size());
            for (const size_t i : block)
                residuals[i] = observations[i].y - means.y -
                               slopes.x * (x_of(observations[i].x) - means.x) -
                               slopes.t * (observations[i].time - means.t);
        }
        std::vector<double> sizes;
        for (const double residual : residuals) sizes.push_back(std::abs(residual));
        line.scale = std::max(
            least_scale,
            fixed_scale.value_or(kMadToSigma * median(sizes) *
                                 std::sqrt(static_cast<double>(observations.size()) / freedom)));
        if (!(line.scale > 0)) break; // a perfect fit
        line.loss = 0;
        for (size_t i = 0; i < residuals.size(); ++i) {
            line.loss += loss_of(residuals[i], line.scale);
            line.weights[i] =
                std::min(1.0, kHuber * line.scale / std::max(std::abs(residuals[i]), 1e-300));
        }
        const double change = std::abs(line.slope - before.x);
        if (iteration > 0 && change <= 1e-9 * std::max(std::abs(line.slope), 1e-12)) break;
    }
    return line;
}

double identity(double x) {
    return x;
}

// Standard deviations over bootstrap replicates, for the few blocks they were drawn from.
double spread(const std::vector<double>& values, size_t blocks) {
    const double mean =
        std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
    double squares = 0;
    for (const double value : values) squares += (value - mean) * (value - mean);
    const double few = static_cast<double>(blocks) / static_cast<double>(blocks - 1);
    return std::sqrt(squares / static_cast<double>(values.size() - 1) * few);
}

// Calls `use` with the blocks drawn for each replicate.
template <typename Use>
void bootstrap(size_t blocks, uint64_t seed, Use use) {
    std::mt19937_64 random(seed);
    std::vector<size_t> drawn(blocks);
    for (size_t replicate = 0; replicate < kReplicates; ++replicate) {
        for (size_t& block : drawn)
            block = random() % blocks; // std distributions differ by library
        use(drawn);
    }
}

// Replicates keep the weights of the fit, which answers a change of the data less than Huber's
// estimator does: by the sum of the weights over that of the loss's second derivative.
double fixed_weights_factor(const std::vector<double>& weights) {
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    const auto full = std::count(weights.begin(), weights.end(), 1.0);
    return full > 0 ? sum / static_cast<double>(full) : 1;
}

Sums sum_drawn(const std::vector<Sums>& blocks, const std::vector<size_t>& drawn) {
    Sums sum;
    for (const size_t block : drawn) sum += blocks[block];
    return sum;
}

size_t distinct_doses(std::span<const Observation> observations, double tolerance) {
    std::vector<double> doses;
    for (const Observation& one : observations) doses.push_back(one.x);
    std::sort(doses.begin(), doses.end());
    size_t count = 0;
    double last = -std::numeric_limits<double>::infinity();
    for (const double dose : doses) {
        if (dose - last > tolerance) ++count;
        last = dose;
    }
    return count;
}

} // namespace

std::string to_string(Shape shape) {
    switch (shape) {
        case Shape::kFlat:
            return "flat";
        case Shape::kLinear:
            return "linear";
        case Shape::kHinge:
            return "hinge";
    }
    return "flat";
}

Estimate estimate_of(double value, double error, double freedom) {
    Estimate estimate;
    estimate.value = value;
    estimate.error = error;
    if (!(freedom > 0) || !std::isfinite(error)) {
        const double infinity = std::numeric_limits<double>::infinity();
        estimate.error = infinity;
        estimate.interval = estimate.wide = {-infinity, infinity};
        return estimate;
    }
    const boost::math::students_t distribution(freedom);
    const double t95 = boost::math::quantile(distribution, 0.975) * error;
    const double t99 = boost::math::quantile(distribution, 0.995) * error;
    estimate.interval = {value - t95, value + t95};
    estimate.wide = {value - t99, value + t99};
    if (error > 0)
        estimate.p =
            2 * boost::math::cdf(boost::math::complement(distribution, std::abs(value) / error));
    else
        estimate.p = value == 0 ? 1 : 0;
    return estimate;
}

Line fit_line(std::span<const Observation> observations) {
    return fit(observations, group(observations), identity);
}

LineEstimate estimate_line(std::span<const Observation> observations, uint64_t seed) {
    const auto blocks = group(observations);
    LineEstimate result;
    result.blocks = blocks.size();
    result.line = fit(observations, blocks, identity);
    if (blocks.size() < 2) {
        result.slope = estimate_of(result.line.slope, 0, 0);
        return result;
    }
    const auto sums = block_sums(observations, blocks, result.line.weights, identity);
    std::vector<double> slopes;
    bootstrap(blocks.size(), seed, [&](const std::vector<size_t>& drawn) {
        slopes.push_back(solve(sum_drawn(sums, drawn)).x);
    });
    const double xx = total(sums).xx;
    const double least = xx > 0 ? counting_error(observations) / std::sqrt(xx) : 0;
    const double seen = spread(slopes, blocks.size()) * fixed_weights_factor(result.line.weights);
    result.slope = estimate_of(result.line.slope, std::max(seen, least),
                               static_cast<double>(blocks.size() - 1));
    return result;
}

ShapeEstimate fit_shape(std::span<const Observation> observations, uint64_t seed) {
    ShapeEstimate result;
    result.line = estimate_line(observations, seed);
    result.slope = result.line.slope;
    result.base = result.line.line.base;
    result.shape = result.slope.interval.contains(0) ? Shape::kFlat : Shape::kLinear;
    const auto blocks = group(observations);
    double largest = 0;
    for (const Observation& one : observations) largest = std::max(largest, one.x);
    // Apart by a tenth of the range: the measured doses of one setting scatter.
    if (blocks.size() < 2 || distinct_doses(observations, largest / 20) < 4) return result;

    // Candidates for the slack, each with the hinge's own robust fit.
    const auto slack_of = [&](size_t step) {
        return largest * static_cast<double>(step) / static_cast<double>(kSlackSteps);
    };
    const auto beyond = [](double slack) {
        return [slack](double x) { return std::max(0.0, x - slack); };
    };
    // The scale of the better fit judges both.
    double scale = result.line.line.scale;
    size_t best = 0;
    Line hinge;
    for (int round = 0; round < 3 && scale > 0; ++round) {
        double best_loss = std::numeric_limits<double>::infinity();
        for (size_t step = 0; step + 2 < kSlackSteps; ++step) {
            Line candidate = fit(observations, blocks, beyond(slack_of(step)), scale);
            if (candidate.loss >= best_loss) continue;
            best_loss = candidate.loss;
            best = step;
            hinge = std::move(candidate);
        }
        scale = fit(observations, blocks, beyond(slack_of(best))).scale;
    }
    if (best == 0 || !(scale > 0)) return result;
    const double straight = fit(observations, blocks, identity, scale).loss;
    const double bent = fit(observations, blocks, beyond(slack_of(best)), scale).loss;
    if (straight - bent < kHingeChiSquare || hinge.slope <= 0) return result;

    std::vector<std::vector<Sums>> sums;
    for (size_t step = 0; step + 2 < kSlackSteps; ++step)
        sums.push_back(block_sums(observations, blocks, hinge.weights, beyond(slack_of(step))));
    std::vector<double> slopes, slacks;
    bootstrap(blocks.size(), seed, [&](const std::vector<size_t>& drawn) {
        double least = std::numeric_limits<double>::infinity();
        double slack = 0, slope = 0;
        for (size_t step = 0; step < sums.size(); ++step) {
            const Sums sum = sum_drawn(sums[step], drawn);
            const double left = unexplained(sum);
            if (left >= least) continue;
            least = left;
            slack = slack_of(step);
            slope = solve(sum).x;
        }
        slopes.push_back(slope);
        slacks.push_back(slack);
    });
    const auto freedom = static_cast<double>(blocks.size() - 1);
    const double factor = fixed_weights_factor(hinge.weights);
    const double xx = total(sums[best]).xx;
    const double least = xx > 0 ? counting_error(observations) / std::sqrt(xx) : 0;
    const double grid = largest / static_cast<double>(kSlackSteps) / std::sqrt(12.0);
    const Estimate slack = estimate_of(
        slack_of(best), std::hypot(spread(slacks, blocks.size()) * factor, grid), freedom);
    if (slack.interval.low <= 0) return result;
    result.shape = Shape::kHinge;
    result.slack = slack;
    result.slope =
        estimate_of(hinge.slope, std::max(spread(slopes, blocks.size()) * factor, least), freedom);
    result.base = hinge.base;
    return result;
}

std::vector<double> holm(std::span<const double> p) {
    std::vector<size_t> order(p.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] < p[b]; });
    std::vector<double> corrected(p.size());
    double largest = 0;
    for (size_t rank = 0; rank < order.size(); ++rank) {
        const double value = p[order[rank]] * static_cast<double>(p.size() - rank);
        largest = std::max(largest, std::min(1.0, value));
        corrected[order[rank]] = largest;
    }
    return corrected;
}

size_t blocks_needed(size_t blocks, double half_width, double wanted) {
    if (!std::isfinite(half_width) || wanted <= 0 || blocks == 0) return 0;
    const double ratio = half_width / wanted;
    return static_cast<size_t>(std::ceil(static_cast<double>(blocks) * ratio * ratio));
}

Estimate difference(const Estimate& a, size_t blocks_a, const Estimate& b, size_t blocks_b) {
    const double va = a.error * a.error, vb = b.error * b.error;
    double freedom = 0;
    if (blocks_a > 1 && blocks_b > 1)
        freedom = va + vb > 0 ? (va + vb) * (va + vb) /
                                    (va * va / static_cast<double>(blocks_a - 1) +
                                     vb * vb / static_cast<double>(blocks_b - 1))
                              : static_cast<double>(std::min(blocks_a, blocks_b) - 1);
    return estimate_of(b.value - a.value, std::sqrt(va + vb), freedom);
}

} // namespace speedbump::experiment
