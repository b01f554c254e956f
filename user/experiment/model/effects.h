// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "experiment/model/regression.h"
#include "experiment/statistics.h"

// What the regression of a run says of each target. Pure.
namespace speedbump::experiment {

// What the caller knows, and what it cares for.
struct EffectLimits {
    double call_error_ns = 20; // standard error of what a delayed call costs besides its spin
    double matters = 0.2;      // a criticality of this size must not be taken for hidden
    bool may_wait = false;     // targets wait for each other: a slack is the rule, not a line
};

enum class Finding {
    kMatters, // from the first ns on
    kHidden,  // a criticality of the size that matters would have been seen
    kOpen,    // neither is certain yet
    kSilent,  // the interval holds anything
};
std::string to_string(Finding finding);

struct Effect {
    size_t target = 0;
    Shape shape = Shape::kFlat;
    Estimate criticality;     // of small doses: of a hinge, up to its slack
    Estimate beyond;          // hinge only: of the doses beyond its slack
    Estimate slack;           // hinge only: ns per call
    double least_slack = 0;   // ns per call: one below it would not have been told from a line
    bool may_be_hinge = true; // with a slack above that: no dose says otherwise
    Finding finding = Finding::kSilent;
    double freedom = 0; // of the errors
};

// One for each target with a delay.
std::vector<Effect> find_effects(const Regression& regression, const EffectLimits& limits);

// Of a unit's time, what the full dose of a target that matters adds. An experiment begins with the
// large one, which tells the most, and begins anew with the small one where doses bend.
inline constexpr double kLargeShare = 0.25;
inline constexpr double kSmallShare = 0.1;

// Whether the full doses do more or less than in proportion, alone or together, beyond doubt. All
// targets are looked at: one run shows it where one target would not.
bool bends(const Regression& regression, const EffectLimits& limits);

} // namespace speedbump::experiment
