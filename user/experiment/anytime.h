// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include "experiment/statistics.h"

// The stopping rule: intervals that may be looked at as often as one likes. Pure functions.
namespace speedbump::experiment {

// The same estimate with intervals and a p that hold at every look together: over all looks of an
// experiment, after 2, 3... `blocks`, the 95 % interval leaves the truth out at all in at most 5 %
// of experiments, so whatever was seen may decide which look is the last. `freedom` is that of the
// estimate's error, where it is not blocks - 1. Infinite with fewer than three blocks.
Estimate anytime(const Estimate& estimate, size_t blocks);
Estimate anytime(const Estimate& estimate, size_t blocks, double freedom);

} // namespace speedbump::experiment
