// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>

#include "util/units.h"

namespace speedbump::report {

// A time in ns that was computed, to the next whole one, in the unit that suits it.
inline std::string show_ns(double ns) {
    return show_time(std::chrono::nanoseconds(static_cast<int64_t>(std::llround(ns))));
}

} // namespace speedbump::report
