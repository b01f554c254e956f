// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "experiment/model/regression.h"

// Parts of units: where a slice has few of them, where its edges cut them is most of its noise, and
// not all of that is noise, as a delay moves the edge through the units that follow. Pure.
namespace speedbump::experiment {

// Counts parts of the units at the edges of slices as well, by when the units of each slice were
// done: `since_ns`, from its beginning, all of them together. Their mean time is a point of the
// curve of progress, and between two of these the curve is taken for straight. A point lies beyond
// the edge, so what is done before the edge depends on doses that come after it: `units` are moved
// later by `lead` slices, against the doses.
//
// The run stays as it is where the times are not known, where slices have so many units that their
// edges do not matter, and where so many slices have none that nothing can be told of one.
void count_parts(SlicedRun& run, const std::vector<uint64_t>& since_ns);

} // namespace speedbump::experiment
