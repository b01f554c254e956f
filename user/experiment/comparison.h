// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "experiment/document.h"
#include "experiment/statistics.h"
#include "util/result.h"

namespace speedbump::experiment {

// A progress point of two documents, by its place in each.
struct CommonPoint {
    std::string name; // progress_name()
    size_t in_a = 0, in_b = 0;
};
// In the order of a. kInvalid, with what each has, when there is none.
Result<std::vector<CommonPoint>> common_points(const Document& a, const Document& b);

// Targets that two documents have in common, b against a.
struct ComparedTarget {
    std::string name;
    Estimate a, b;
    Estimate difference; // of the criticality
    double p = 1;        // Holm-corrected
};
struct Comparison {
    std::string progress;
    double period_a = 0, period_b = 0;
    std::vector<ComparedTarget> targets;
    std::vector<std::string> only_a, only_b;
};
// kInvalid when they have no progress point in common.
Result<Comparison> compare(const Document& a, const Document& b);

} // namespace speedbump::experiment
