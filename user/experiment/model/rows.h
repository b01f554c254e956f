// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

#include "experiment/model/regression.h"
#include "experiment/model/strip.h"

// The equations of a run's slices, for what is told from them. Pure.
namespace speedbump::experiment {

// Of one target at one level of its dose, or several together, by slice.
struct Column {
    Strip injected; // ns
    Strip drawn;    // its share where the dose was drawn; everywhere less that times its chance
};

// What was drawn for one slice.
inline double drawn_at(const Step& step, double chance) {
    return ((step.on ? 1 : 0) - chance) * share_of(step.level);
}

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
    std::vector<double> left; // length less that share of the window's
    std::vector<Strip> right; // by column: injected time less that share
};
Rows rows_of(const SlicedRun& run, const std::vector<Column>& columns, const Response& response);
// The same for the left side alone, with a window of so many slices to either side.
std::vector<double> left_of(const SlicedRun& run, size_t reach);

// What was drawn for a slice and the `lags` ones before it.
Strip reaching(const Strip& drawn, size_t slices, size_t lags);

// The cells of a run and their columns; cells without a delay are left out, and levels that were
// hardly met, of rare calls, are one cell with the next one.
void collect(const SlicedRun& run, std::vector<Cell>& cells, std::vector<Column>& columns);

} // namespace speedbump::experiment
