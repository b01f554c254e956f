// SPDX-License-Identifier: MIT
#pragma once

// What is judged in more than one place, and alike.
namespace speedbump::experiment {

inline constexpr double kContention =
    0.1; // of the time, or of the injected time: more is warned of
inline constexpr double kSignificant = 0.05; // what p is below where something differs

} // namespace speedbump::experiment
