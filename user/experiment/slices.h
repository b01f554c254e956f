// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
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

// Units of a progress point in each slice, as they are counted: in parts, where that tells more.
// The document has slices.
std::vector<double> units_by_slice(const Document& document, size_t progress);

// What a look at a running experiment says, by its first progress point.
struct SlicedLook {
    // Whether the intervals of all targets are as narrow as was asked for. One that reaches to
    // none, as there may be a slack, will do where by noise alone it is much narrower: some slacks
    // are never told from none.
    bool is_precise = false;
    bool bends = false;   // its doses are too large to tell what the first ns do (of the model)
    bool is_late = false; // effects arrive later than they are followed, or nearly so
};
// The document has slices.
SlicedLook look_at_slices(const Document& document, double precision);

// Whether effects arrive later than they are followed by what was measured after the first `from`
// slices alone. A look may say so by chance, and looks are many. False where too few slices are
// left to tell.
bool is_late_after(const Document& document, size_t from);

// Why nothing was concluded for a progress point of which that is so.
std::string nothing_known(const Document& document, size_t progress);

} // namespace speedbump::experiment
