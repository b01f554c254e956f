// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <vector>

#include "util/clock.h"

// What measuring the cost of a call takes.
namespace speedbump::engine {

template <typename T>
T median(std::vector<T> values) {
    auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

// What else the machine does only ever adds to a measured time: the lower octile is near to the
// undisturbed one.
inline double undisturbed(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 8];
}

// Half the distance between the quartiles.
inline double spread(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return (values[values.size() * 3 / 4] - values[values.size() / 4]) / 2;
}

inline double ns_per_call(void (*function)(), int calls) {
    const auto begin = monotonic_ns();
    for (int i = 0; i < calls; ++i) function();
    return static_cast<double>(monotonic_ns() - begin) / calls;
}

} // namespace speedbump::engine
