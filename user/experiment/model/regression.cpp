// SPDX-License-Identifier: MIT
#include "experiment/model/regression.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

namespace speedbump::experiment {

namespace {

constexpr size_t kWindow = 12; // slices to either side that the level of the pace is taken from
constexpr size_t kBlockSlices = 16;
constexpr size_t kFewestBlocks = 40;
constexpr double kEnoughBlocks = 50;  // to tell a cell's noise by itself
constexpr double kFewestDelays = 100; // of a cell
constexpr size_t kMaxLags = 16;
constexpr size_t kLagWindow = 64;      // instead of kWindow, to see all of a late effect
constexpr double kPairStandsOut = 3.5; // standard errors
constexpr double kLateEffect = 4;      // standard errors

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

struct Column {
    std::vector<double> injected; // of one cell, by slice
    std::vector<double> drawn;    // half of its share where the dose was drawn, less half where not
};

// Each slice of the run is a row of
//     length = period * units + sum of criticality * injected,
// the period being that of the slices around it: length and injected time of the window over its
// units. It is linear in the criticalities, has nothing to divide by in a slice without a unit, and
// adds up over slices. Units and injected time have noise in common, so the equations are not
// solved by least squares but by what was drawn: chance has nothing in common with either.
//
// Injected time enters when it arrives, as far as that is known. That only takes noise away: what
// was drawn is looked at over all lags, so the sum is right however it arrives.
struct Rows {
    std::vector<double> left;               // length less that share of the window's
    std::vector<std::vector<double>> right; // by cell: injected time less that share
};

Rows rows_of(const SlicedRun& run, const std::vector<Column>& columns,
             const std::vector<double>& shares, size_t reach) {
    const size_t slices = run.units.size();
    const std::vector<double> units = windowed(run.units, reach);
    Rows rows;
    rows.left.resize(slices);
    std::vector<double> share(slices);
    for (size_t i = 0; i < slices; ++i) {
        share[i] = units[i] > 0 ? run.units[i] / units[i] : 0;
        const size_t begin = i < reach ? 0 : i - reach;
        const size_t around = std::min(slices, i + reach + 1) - begin;
        if (units[i] > 0)
            rows.left[i] = run.slice_ns * (1 - share[i] * static_cast<double>(around));
    }
    for (const Column& column : columns) {
        const std::vector<double> arriving = delayed(column.injected, shares);
        const std::vector<double> around = windowed(arriving, reach);
        std::vector<double>& right = rows.right.emplace_back(slices);
        for (size_t i = 0; i < slices; ++i)
            if (units[i] > 0) right[i] = arriving[i] - share[i] * around[i];
    }
    return rows;
}

// What was drawn for a slice and the `lags` ones before it.
std::vector<double> reaching(const std::vector<double>& drawn, size_t lags) {
    std::vector<double> result(drawn.size());
    double sum = 0;
    for (size_t i = 0; i < drawn.size(); ++i) {
        sum += drawn[i];
        if (i > lags) sum -= drawn[i - lags - 1];
        result[i] = sum;
    }
    return result;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// One level of a target, or several together.
struct Part {
    Cell cell;
    Column column;
    double injected = 0, delays = 0, units = 0; // units: of slices with the dose
};

Part part_of(const SlicedRun& run, size_t target, size_t level) {
    const TargetSlices& slices = run.targets[target];
    Part part{{target, level},
              {std::vector<double>(run.units.size()), std::vector<double>(run.units.size())}};
    for (size_t i = 0; i < run.units.size(); ++i) {
        const Step& step = slices.steps[i];
        if (step.level != level) continue;
        // Where levels are one cell, the larger doses tell more.
        part.column.drawn[i] = (step.on ? 0.5 : -0.5) * share_of(level);
        part.column.injected[i] = slices.injected[i];
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
    for (size_t i = 0; i < to.column.drawn.size(); ++i) {
        to.column.drawn[i] += from.column.drawn[i];
        to.column.injected[i] += from.column.injected[i];
    }
    to.injected += from.injected;
    to.delays += from.delays;
    to.units += from.units;
    to.cell.slices += from.cell.slices;
    to.cell.level = std::max(to.cell.level, from.cell.level);
}

// The cells of a run and their columns; cells without a delay are left out, and levels that were
// hardly met, of rare calls, are one cell with the next one.
void collect(const SlicedRun& run, std::vector<Cell>& cells, std::vector<Column>& columns) {
    for (size_t target = 0; target < run.targets.size(); ++target) {
        std::vector<Part> parts;
        for (size_t level = 1; level <= kLevels; ++level) {
            Part part = part_of(run, target, level);
            if (part.injected <= 0 || part.delays <= 0 || part.units <= 0) continue;
            if (!parts.empty() && parts.back().delays < kFewestDelays)
                join(parts.back(), part);
            else
                parts.push_back(std::move(part));
        }
        if (parts.size() > 1 && parts.back().delays < kFewestDelays) {
            join(parts[parts.size() - 2], parts.back());
            parts.pop_back();
        }
        for (Part& part : parts) {
            part.cell.per_unit = part.injected / part.units;
            part.cell.per_call = part.injected / part.delays;
            cells.push_back(part.cell);
            columns.push_back(std::move(part.column));
        }
    }
}

struct Solved {
    std::vector<std::vector<double>> instruments; // by column
    Matrix bread{0, 0};                           // of instruments times columns, inverse
    Matrix solution{0, 0};                        // criticality of each column
    std::vector<double> rest;                     // of each slice
};

std::optional<Solved> solve(const SlicedRun& run, const std::vector<Column>& columns,
                            const Response& response) {
    const size_t lags = response.lags;
    const Rows rows = rows_of(run, columns, shares_of(response), kWindow + 2 * lags);
    const size_t size = columns.size();
    Solved solved;
    for (const Column& column : columns) solved.instruments.push_back(reaching(column.drawn, lags));
    Matrix moments(size, size), left(size, 1);
    for (size_t a = 0; a < size; ++a) {
        left(a, 0) = dot(solved.instruments[a], rows.left);
        for (size_t b = 0; b < size; ++b) moments(a, b) = dot(solved.instruments[a], rows.right[b]);
    }
    auto bread = inverse(moments);
    if (!bread) return std::nullopt;
    solved.bread = std::move(*bread);
    solved.solution = product(solved.bread, left);
    solved.rest = rows.left;
    for (size_t column = 0; column < size; ++column)
        for (size_t i = 0; i < solved.rest.size(); ++i)
            solved.rest[i] -= rows.right[column][i] * solved.solution(column, 0);
    return solved;
}

// What is left of each slice times each instrument, by block.
std::vector<std::vector<double>> block_moments(const std::vector<double>& rest,
                                               const std::vector<std::vector<double>>& instruments,
                                               size_t block_slices) {
    std::vector<std::vector<double>> blocks;
    for (size_t i = 0; i < rest.size(); ++i) {
        if (i % block_slices == 0) blocks.emplace_back(instruments.size());
        for (size_t column = 0; column < instruments.size(); ++column)
            blocks.back()[column] += instruments[column][i] * rest[i];
    }
    return blocks;
}

double share_at(const Step& step) {
    return step.on ? share_of(step.level) : 0;
}

Column column_of(const SlicedRun& run, const Pair& pair) {
    const TargetSlices& first = run.targets[pair.first];
    const TargetSlices& second = run.targets[pair.second];
    Column column{std::vector<double>(run.units.size()), std::vector<double>(run.units.size())};
    for (size_t i = 0; i < run.units.size(); ++i) {
        const Step &a = first.steps[i], &b = second.steps[i];
        column.injected[i] = first.injected[i] * share_at(b);
        column.drawn[i] = (a.on == b.on ? 0.25 : -0.25) * share_of(a.level) * share_of(b.level);
    }
    return column;
}

// The pairs whose doses together did something that the two alone do not explain.
std::vector<Pair> pairs_of(const SlicedRun& run, const Solved& solved, const Response& response,
                           size_t block_slices) {
    const size_t lags = response.lags;
    std::vector<Pair> pairs;
    for (size_t first = 0; first < run.targets.size(); ++first)
        for (size_t second = first + 1; second < run.targets.size(); ++second) {
            Pair pair{first, second, 0, 0};
            const Column column = column_of(run, pair);
            const auto instrument = reaching(column.drawn, lags);
            double sum = 0, squares = 0;
            for (const auto& block : block_moments(solved.rest, {instrument}, block_slices)) {
                sum += block[0];
                squares += block[0] * block[0];
            }
            if (std::abs(sum) <= kPairStandsOut * std::sqrt(squares)) continue;
            const Rows rows = rows_of(run, {column}, shares_of(response), kWindow + 2 * lags);
            const double common = dot(instrument, rows.right[0]);
            if (common == 0) continue;
            pair.change = sum / common;
            pair.error = std::sqrt(squares) / std::abs(common);
            pairs.push_back(pair);
        }
    return pairs;
}

// What the blocks tell of a column's noise, for each slice with its instrument: its own for one
// with many blocks, the group's for one with few.
std::vector<double> noise_of(const std::vector<size_t>& groups,
                             const std::vector<std::vector<double>>& blocks,
                             const std::vector<std::vector<double>>& instruments) {
    const size_t size = groups.size();
    std::vector<double> own(size), drawn(size), counted(size);
    for (size_t column = 0; column < size; ++column) {
        for (const std::vector<double>& block : blocks) {
            own[column] += block[column] * block[column];
            counted[column] += block[column] != 0;
        }
        drawn[column] = dot(instruments[column], instruments[column]);
    }
    std::vector<double> noise(size);
    for (size_t column = 0; column < size; ++column) {
        double all = 0, all_drawn = 0;
        for (size_t other = 0; other < size; ++other) {
            if (groups[other] != groups[column]) continue;
            all += own[other];
            all_drawn += drawn[other];
        }
        const double trust = counted[column] / (counted[column] + kEnoughBlocks);
        noise[column] =
            std::sqrt(trust * own[column] / drawn[column] + (1 - trust) * all / all_drawn);
    }
    return noise;
}

// G^-1 S G^-T
Matrix covariance_of(const Matrix& bread, const std::vector<double>& noise,
                     const std::vector<std::vector<double>>& instruments) {
    const size_t size = noise.size();
    Matrix squares(size, size);
    for (size_t a = 0; a < size; ++a)
        for (size_t b = 0; b < size; ++b)
            squares(a, b) = noise[a] * noise[b] * dot(instruments[a], instruments[b]);
    return product(product(bread, squares), transposed(bread));
}

double period_without(const SlicedRun& run, const std::vector<Column>& columns,
                      const Matrix& solution) {
    double length = run.slice_ns * static_cast<double>(run.units.size());
    for (size_t column = 0; column < columns.size(); ++column)
        length -= solution(column, 0) * std::accumulate(columns[column].injected.begin(),
                                                        columns[column].injected.end(), 0.0);
    return length / std::accumulate(run.units.begin(), run.units.end(), 0.0);
}

// The change of pace in each slice, 0, 1, ... after a dose of one target was drawn.
struct Echo {
    std::vector<double> after;
    std::vector<double> errors; // standard errors
};

constexpr size_t kBefore = kMaxLags + 1; // slices before the dose: nothing comes before its cause
constexpr size_t kEchoes = kBefore + kMaxLags + 1;

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
// have been the other one.
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
    if (!inverted) return {none, none};
    const Matrix effect = product(*inverted, moments);
    // What is the same at every lag is the level of the pace, not an effect.
    double level = 0;
    for (size_t row = 0; row < kBefore; ++row) level += effect(row, 0) / kBefore;
    const std::vector<double> rest = rest_of(drawn, pace, effect);
    Echo echo;
    for (size_t lag = 0; lag <= kMaxLags; ++lag) {
        echo.after.push_back(effect(kBefore + lag, 0) - level);
        double squares = 0;
        for (size_t i = 0; i + lag < rest.size(); ++i)
            squares += drawn[i] * rest[i + lag] * drawn[i] * rest[i + lag];
        echo.errors.push_back(std::sqrt(squares) / common(0, 0));
    }
    return echo;
}

// The last lag at which more than noise came, and one for what is left. Each by itself: a sum of
// several has the slow noise of the host in it.
size_t last_lag(const Echo& echo) {
    size_t last = 0;
    for (size_t lag = 0; lag < kMaxLags; ++lag)
        if (std::abs(echo.after[lag]) > kLateEffect * echo.errors[lag]) last = lag;
    return last + 1;
}

} // namespace

Response find_response(const SlicedRun& run) {
    Response response;
    std::vector<Cell> cells;
    std::vector<Column> columns;
    collect(run, cells, columns);
    const std::vector<double> pace = rows_of(run, {}, {1}, kLagWindow).left;
    std::vector<double> sum(kMaxLags + 1);
    for (size_t target = 0; target < run.targets.size(); ++target) {
        std::vector<double> drawn(run.units.size());
        for (size_t cell = 0; cell < cells.size(); ++cell)
            for (size_t i = 0; cells[cell].target == target && i < drawn.size(); ++i)
                drawn[i] += columns[cell].drawn[i];
        const Echo echo = echo_of(drawn, pace);
        response.lags = std::max(response.lags, last_lag(echo));
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

Regression regress(const SlicedRun& run, const Response& response) {
    const size_t lags = response.lags;
    Regression result;
    std::vector<Column> columns;
    collect(run, result.cells, columns);
    const size_t block_slices = std::max(kBlockSlices, 4 * (lags + 1));
    if (columns.empty() || run.units.size() < kFewestBlocks * block_slices) {
        result.cells.clear();
        return result;
    }
    auto solved = solve(run, columns, response);
    if (!solved) {
        result.cells.clear();
        return result;
    }
    result.pairs = pairs_of(run, *solved, response, block_slices);
    const auto blocks = block_moments(solved->rest, solved->instruments, block_slices);
    result.blocks = blocks.size();
    std::vector<size_t> groups; // with noise in common
    for (const Cell& cell : result.cells) groups.push_back(cell.target);
    result.covariance = covariance_of(solved->bread, noise_of(groups, blocks, solved->instruments),
                                      solved->instruments);
    for (size_t cell = 0; cell < result.cells.size(); ++cell)
        result.cells[cell].criticality = solved->solution(cell, 0);
    result.period = period_without(run, columns, solved->solution);
    return result;
}

} // namespace speedbump::experiment
