// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <string>
#include <vector>

#include "experiment/document.h"
#include "experiment/pace.h"
#include "experiment/statistics.h"
#include "util/result.h"

// Whether b is worse than a: the gate of `compare` and `experiment --ab`. Pure functions.
namespace speedbump::experiment {

// One figure of both; more of it is worse.
struct Change {
    std::string progress;
    std::string what;    // "time per unit", "p99"
    bool is_pace = true; // else a percentile
    double a = 0, b = 0; // ns
    Estimate change;     // b / a - 1
    double p = 1;        // Holm-corrected, of no change
};

struct Changes {
    std::vector<Change> changes;
    std::vector<std::string> doubts; // why nothing can be concluded, whatever the figures are
    std::vector<std::string> notes;  // what a reader should know besides
};

enum class Judgement {
    kNotWorse,  // a change of the limit is excluded, or the one there is is smaller
    kWorse,     // it differs, and by the limit or more
    kUndecided, // neither no change nor one of the limit is excluded
};
std::string to_string(Judgement judgement);

// `limit`: a share, as 0.01.
Judgement judge(const Change& change, double limit);
// kWorse when one is, else kUndecided when there is a doubt, no pace, or one that is undecided:
// percentiles that are undecided are no reason to hold anything up.
Judgement judge(const Changes& changes, double limit);

// How many times as long would probably tell a change of the limit from none; 0: unknown.
double times_longer(const Change& change, double limit);

// Of latencies, of which a stretch has one percentile each; apart, as their steps are what limits
// them.
Change percentile_change(const std::string& progress, const std::string& what,
                         std::span<const Stretch> a, std::span<const Stretch> b);

// Corrects p for all of them having been looked at.
void correct(std::vector<Change>& changes);

// The time per unit of each progress point that both have, and the percentiles of latencies, where
// probes were in place and nothing was delayed. kInvalid when they have no point in common.
Result<Changes> changes_between(const Document& a, const Document& b);

} // namespace speedbump::experiment
