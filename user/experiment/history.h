// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "experiment/analysis.h"
#include "experiment/document.h"

// How an experiment came to its result, for plots. Pure functions.
namespace speedbump::experiment {

// What was known of a target's criticality, on the first progress point.
struct Known {
    size_t target = 0;
    Estimate criticality;
};
struct Moment {
    double seconds = 0; // that had been measured by then
    std::vector<Known> targets;
};
// After each of so many equal parts of all that was measured; parts that tell nothing are left out.
std::vector<Moment> history(const Document& document, size_t parts);

// What the standard error of an on/off contrast over the whole run would be with slices of a
// length, as a share of the pace, from the noise between neighbouring slices of that length. Of
// short slices, on the first progress point, from their own length up in powers of two; else none.
struct Noise {
    double seconds = 0; // of a slice
    double error = 0;
};
std::vector<Noise> noise_by_length(const Document& document);

} // namespace speedbump::experiment
