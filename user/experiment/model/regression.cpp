// SPDX-License-Identifier: MIT
#include "experiment/model/regression.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "experiment/model/interplay.h"
#include "experiment/model/rows.h"

namespace speedbump::experiment {

namespace {

constexpr size_t kBlockSlices = 16;
constexpr size_t kFewestBlocks = 40;
constexpr double kEnoughBlocks = 50; // to tell a cell's noise by itself

// So many slices are one for the noise: what one does reaches into few others.
size_t block_of(size_t lags) {
    return std::max(kBlockSlices, 4 * (lags + 1));
}

struct Solved {
    std::vector<Strip> instruments; // by column
    Matrix bread{0, 0};             // of instruments times columns, inverse
    Matrix solution{0, 0};          // criticality of each column
    std::vector<double> rest;       // of each slice
};

std::optional<Solved> solve(const SlicedRun& run, const std::vector<Column>& columns,
                            const Response& response) {
    const Rows rows = rows_of(run, columns, response);
    const size_t size = columns.size();
    Solved solved;
    for (const Column& column : columns)
        solved.instruments.push_back(reaching(column.drawn, run.units.size(), response.lags));
    Matrix moments(size, size), left(size, 1);
    for (size_t a = 0; a < size; ++a) {
        left(a, 0) = solved.instruments[a].times(rows.left);
        for (size_t b = 0; b < size; ++b)
            moments(a, b) = solved.instruments[a].times(rows.right[b]);
    }
    auto bread = inverse(moments);
    if (!bread) return std::nullopt;
    solved.bread = std::move(*bread);
    solved.solution = product(solved.bread, left);
    solved.rest = rows.left;
    for (size_t column = 0; column < size; ++column)
        rows.right[column].add_to(solved.rest, -solved.solution(column, 0));
    return solved;
}

// How many equal ones would tell as much of a variance as these do, each of which has this weight
// in it.
double equal_ones(const std::vector<double>& weights) {
    double sum = 0, squares = 0;
    for (const double weight : weights) {
        sum += weight;
        squares += weight * weight;
    }
    return squares > 0 ? sum * sum / squares : 0;
}

// What blocks of slices tell of a column's noise, for each slice with its instrument: its own for
// one with many blocks, the group's for one with few.
std::vector<double> noise_of(std::vector<Cell>& cells, const Solved& solved, size_t block_slices) {
    const size_t size = cells.size();
    std::vector<double> own(size), drawn(size), counted(size);
    for (size_t column = 0; column < size; ++column) {
        const Strip& instrument = solved.instruments[column];
        for (const double block : instrument.times_by_block(solved.rest, block_slices))
            own[column] += block * block;
        // Where doses are seldom, few blocks tell nearly all.
        counted[column] = equal_ones(instrument.squares_by_block(solved.rest.size(), block_slices));
        cells[column].blocks = static_cast<size_t>(std::lround(counted[column]));
        // A cell's criticality takes away some of what its blocks differ by.
        if (counted[column] > 1) own[column] *= counted[column] / (counted[column] - 1);
        drawn[column] = instrument.times(instrument);
    }
    std::vector<double> noise(size);
    for (size_t column = 0; column < size; ++column) {
        double all = 0, all_drawn = 0;
        for (size_t other = 0; other < size; ++other) {
            if (cells[other].target != cells[column].target) continue;
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
Matrix covariance_of(const Solved& solved, const std::vector<double>& noise) {
    const size_t size = noise.size();
    Matrix squares(size, size);
    for (size_t a = 0; a < size; ++a)
        for (size_t b = a; b < size; ++b)
            squares(a, b) = squares(b, a) =
                noise[a] * noise[b] * solved.instruments[a].times(solved.instruments[b]);
    return product(product(solved.bread, squares), transposed(solved.bread));
}

double period_without(const SlicedRun& run, const std::vector<Column>& columns,
                      const Matrix& solution) {
    double length = run.slice_ns * static_cast<double>(run.units.size());
    for (size_t column = 0; column < columns.size(); ++column)
        length -= solution(column, 0) * columns[column].injected.sum();
    return length / std::accumulate(run.units.begin(), run.units.end(), 0.0);
}

} // namespace

size_t fewest_slices(size_t lags) {
    return kFewestBlocks * block_of(lags);
}

Regression regress(const SlicedRun& run, const Response& response) {
    Regression result;
    std::vector<Column> columns;
    collect(run, result.cells, columns);
    const size_t block_slices = block_of(response.lags);
    std::optional<Solved> solved;
    if (!columns.empty() && run.units.size() >= fewest_slices(response.lags))
        solved = solve(run, columns, response);
    if (!solved) {
        result.cells.clear();
        return result;
    }
    look_at_pairs(run, solved->rest, response, block_slices, result);
    result.blocks = (run.units.size() + block_slices - 1) / block_slices;
    result.covariance = covariance_of(*solved, noise_of(result.cells, *solved, block_slices));
    for (size_t cell = 0; cell < result.cells.size(); ++cell)
        result.cells[cell].criticality = solved->solution(cell, 0);
    result.period = period_without(run, columns, solved->solution);
    return result;
}

} // namespace speedbump::experiment
