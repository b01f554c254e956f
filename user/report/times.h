// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

#include "util/units.h"

namespace speedbump::report {

// A time in ns that was computed, to the next whole one, in the unit that suits it.
inline std::string show_ns(double ns) {
    constexpr double kMost = 0x1p62; // which an integer can hold
    if (std::isnan(ns)) return "-";
    return show_time(std::chrono::nanoseconds(std::llround(std::clamp(ns, -kMost, kMost))));
}

} // namespace speedbump::report
