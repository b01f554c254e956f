// SPDX-License-Identifier: MIT
#pragma once

#include <limits>
#include <span>

#include "experiment/statistics.h"

// How long a unit of work takes, and how much longer than elsewhere. Pure functions.
namespace speedbump::experiment {

// Units of work, and the time in which they were counted; any unit of time.
struct Stretch {
    double units = 0;
    double time = 0;
};

// The whole time over all units. What delayed some of them is part of it: nothing is weighed down.
struct Pace {
    double period = 0;                                      // 0: no unit was counted
    double error = std::numeric_limits<double>::infinity(); // standard error of ln(period)
    double freedom = 0;
};

// The stretches are in the order of time. Their noise may hang together from one to the next.
Pace pace_of(std::span<const Stretch> stretches);

// How much longer a unit takes in b than in a, as a share of a (0.01: 1 %). Infinite where a pace
// is not known.
Estimate change_apart(const Pace& a, const Pace& b); // measured at different times
// a[i] and b[i] at the same moments: what slowed both of them alike is no noise. Both must have as
// many stretches. `unlike`: ln of how much longer b's units may have taken for a reason that is
// none of the two, all the time, so that no stretch tells of it; the interval holds the change with
// that and without, and p is the larger one.
Estimate change_side_by_side(std::span<const Stretch> a, std::span<const Stretch> b,
                             double unlike = 0);

// The same, with an interval and a p that hold at every look together, one after each of `blocks`
// equal parts so far (anytime.h).
Estimate change_at_any_look(std::span<const Stretch> a, std::span<const Stretch> b, size_t blocks,
                            double unlike = 0);

} // namespace speedbump::experiment
