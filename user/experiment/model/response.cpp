// SPDX-License-Identifier: MIT
// Of an experiment on many targets at once, when their effects arrive.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "experiment/model/limit.h"
#include "experiment/model/rows.h"

namespace speedbump::experiment {

namespace {

constexpr size_t kMaxLags = Response::kMaxLags;
constexpr size_t kLagWindow = 64;     // slices to either side, to see all of a late effect
constexpr double kLateChance = 0.005; // that noise looks like a late effect, of a run

// The change of pace in each slice, 0, 1, ... after a dose of one target was drawn.
struct Echo {
    std::vector<double> after;
    std::vector<double> errors; // standard errors
};

constexpr size_t kBefore = kMaxLags + 1; // slices before the dose: nothing comes before its cause
constexpr size_t kEchoes = kBefore + kMaxLags + 1;
constexpr size_t kFewestSlices = 4 * kEchoes; // that tell of them
// Effects that come later than kMaxLags are looked for in sums of so many slices: of as many as
// there are enough for.
constexpr size_t kFewSummed = 4, kSummed = 8;

// The sum of drawn[i + back] * values[i + ahead].
double dot_at(const std::vector<double>& drawn, size_t back, const std::vector<double>& values,
              size_t ahead) {
    double sum = 0;
    for (size_t i = 0; i + std::max(back, ahead) < drawn.size(); ++i)
        sum += drawn[i + back] * values[i + ahead];
    return sum;
}

// What no echo explains.
std::vector<double> rest_of(const std::vector<double>& drawn, const std::vector<double>& pace,
                            const Matrix& effect) {
    std::vector<double> rest = pace;
    for (size_t row = 0; row < kEchoes; ++row) {
        const size_t back = kBefore - std::min(row, kBefore);
        const size_t ahead = std::max(row, kBefore) - kBefore;
        for (size_t i = 0; i + std::max(back, ahead) < rest.size(); ++i)
            rest[i + ahead] -= effect(row, 0) * drawn[i + back];
    }
    return rest;
}

// Draws have a little in common by chance: all lags are solved for at once. The errors are those of
// what was drawn: whatever the host did, and however slowly it changed, each draw could as well
// have been the other one. Where doses are seldom the slices that have one may by chance have none
// of what disturbs others now and then, such as other targets' doses: the error is no less than
// that of noise that is the same in all slices.
Echo echo_of(const std::vector<double>& drawn, const std::vector<double>& pace) {
    Matrix common(kEchoes, kEchoes), moments(kEchoes, 1);
    for (size_t row = 0; row < kEchoes; ++row) {
        moments(row, 0) = row < kBefore ? dot_at(drawn, kBefore - row, pace, 0)
                                        : dot_at(drawn, 0, pace, row - kBefore);
        const double together = dot_at(drawn, 0, drawn, row);
        for (size_t i = 0; i + row < kEchoes; ++i)
            common(i, i + row) = common(i + row, i) = together;
    }
    const auto inverted = inverse(common);
    const std::vector<double> none(kMaxLags + 1);
    if (!inverted || pace.size() < kFewestSlices) return {none, none};
    const Matrix effect = product(*inverted, moments);
    // What is the same at every lag is the level of the pace, not an effect.
    double level = 0;
    for (size_t row = 0; row < kBefore; ++row) level += effect(row, 0) / kBefore;
    const std::vector<double> rest = rest_of(drawn, pace, effect);
    const auto slices = static_cast<double>(rest.size());
    // What is left of few slices is little: the echoes have fitted their noise, too (HC3 of
    // MacKinnon and White, 1985, with the same leverage for all).
    const double fitted = slices / (slices - kEchoes);
    const double pooled =
        common(0, 0) * std::inner_product(rest.begin(), rest.end(), rest.begin(), 0.0) / slices;
    Echo echo;
    for (size_t lag = 0; lag <= kMaxLags; ++lag) {
        echo.after.push_back(effect(kBefore + lag, 0) - level);
        double squares = 0;
        for (size_t i = 0; i + lag < rest.size(); ++i)
            squares += drawn[i] * rest[i + lag] * drawn[i] * rest[i + lag];
        echo.errors.push_back(fitted * std::sqrt(std::max(squares, pooled)) / common(0, 0));
    }
    return echo;
}

// The last lag at which more than noise came, and one for what is left. Each by itself: a sum of
// several has the slow noise of the host in it.
size_t last_lag(const Echo& echo, double limit) {
    size_t last = 0;
    for (size_t lag = 0; lag < kMaxLags; ++lag)
        if (std::abs(echo.after[lag]) > limit * echo.errors[lag]) last = lag;
    return last + 1;
}

// Of so many slices each.
std::vector<double> sums_of(const std::vector<double>& values, size_t slices) {
    std::vector<double> sums((values.size() + slices - 1) / slices);
    for (size_t i = 0; i < values.size(); ++i) sums[i / slices] += values[i];
    return sums;
}

// Whether an effect comes further from its dose than it is followed.
bool comes_later(const std::vector<double>& drawn, const std::vector<double>& pace, double limit) {
    const size_t summed = pace.size() < kSummed * kFewestSlices ? kFewSummed : kSummed;
    const Echo echo = echo_of(sums_of(drawn, summed), sums_of(pace, summed));
    return last_lag(echo, limit) > kMaxLags / summed + 1;
}

} // namespace

const size_t Response::kFewestKnown = kFewSummed * kFewestSlices;

Response find_response(const SlicedRun& run) {
    Response response;
    response.is_known = run.units.size() >= Response::kFewestKnown;
    std::vector<Cell> cells;
    std::vector<Column> columns;
    collect(run, cells, columns);
    const std::vector<double> pace = left_of(run, kLagWindow);
    const double limit = limit_of(kLateChance, run.targets.size() * kMaxLags);
    std::vector<double> sum(kMaxLags + 1);
    for (size_t target = 0; target < run.targets.size(); ++target) {
        std::vector<double> drawn(run.units.size());
        for (size_t cell = 0; cell < cells.size(); ++cell)
            if (cells[cell].target == target) columns[cell].drawn.add_to(drawn, 1);
        const Echo echo = echo_of(drawn, pace);
        response.lags = std::max(response.lags, last_lag(echo, limit));
        response.is_cut |= response.lags == kMaxLags || comes_later(drawn, pace, limit);
        for (size_t lag = 0; lag <= kMaxLags; ++lag) sum[lag] += echo.after[lag];
    }
    // Noise is on both sides of 0, and its sum may be near 0 where an effect is small: no share of
    // an effect is below 0, so that none is above 1.
    for (double& change : sum) change = std::max(change, 0.0);
    const double all =
        std::accumulate(sum.begin(), sum.begin() + static_cast<ptrdiff_t>(response.lags) + 1, 0.0);
    double arrived = 0;
    for (size_t lag = 0; lag <= response.lags && all > 0; ++lag)
        response.arrived.push_back((arrived += sum[lag]) / all);
    return response;
}

} // namespace speedbump::experiment
