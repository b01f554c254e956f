// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "experiment/analysis.h"
#include "experiment/document.h"
#include "experiment/model/effects.h"
#include "experiment/model/regression.h"

// What a run in short slices says of its targets (decision 12). Pure functions.
namespace speedbump::experiment {

struct SlicedResult {
    double period = 0; // ns per unit without delay
    Response response;
    size_t blocks = 0;                 // that the errors were told from; 0: too few slices
    std::vector<TargetResult> targets; // of each of the document's, p before Holm's correction
    std::vector<Finding> findings;     // of each of the document's
    std::optional<Estimate> sham;
    std::vector<Pair> pairs; // that stand out, by the document's targets
};

// `at_any_look`: intervals and p hold however often they are looked at. The document has slices.
SlicedResult examine_slices(const Document& document, size_t progress, bool at_any_look);

} // namespace speedbump::experiment
