// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <boost/math/distributions/normal.hpp>
#include <cstddef>

namespace speedbump::experiment {

// So many standard errors are rare where only noise is looked at, and so often: with this chance
// any of them is as far from 0.
inline double limit_of(double chance, size_t looked_at) {
    const double each = chance / static_cast<double>(std::max<size_t>(1, looked_at)) / 2;
    return boost::math::quantile(boost::math::complement(boost::math::normal(), each));
}

} // namespace speedbump::experiment
