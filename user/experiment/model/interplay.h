// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

#include "experiment/model/rows.h"

// What targets do together that each alone does not explain. Pure.
namespace speedbump::experiment {

// Of what is left of each slice, into the regression: the pairs that stand out, and of each target
// how far what it did together with others does.
void look_at_pairs(const SlicedRun& run, const std::vector<double>& rest, const Response& response,
                   size_t block_slices, Regression& into);

} // namespace speedbump::experiment
