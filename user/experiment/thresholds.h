// SPDX-License-Identifier: MIT
#pragma once

// What is judged in more than one place, and alike.
namespace speedbump::experiment {

inline constexpr double kContention =
    0.1; // of the time, or of the injected time: more is warned of
inline constexpr double kSignificant = 0.05; // what p is below where something differs
// By what a unit is thought to take longer at most, for one look without delays: what stood still
// for once is not to be without a guard from then on.
inline constexpr double kMostSlowerAtOnce = 2;

} // namespace speedbump::experiment
