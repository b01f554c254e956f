// SPDX-License-Identifier: MIT
#include "experiment/injected_time.h"

#include <algorithm>

namespace speedbump::experiment {

namespace {

constexpr double kSlower = 4;

} // namespace

uint64_t InjectedTime::add(const Hits& seen, double slice, double host) {
    const double hits = static_cast<double>(seen.hits - std::min(seen.hits, seen.delays));
    // A process that is stopped within a hit takes seconds for it, and the mean would be wrong for
    // all slices that come: one slice may be some times as slow as those before, or a slice longer.
    const double most = hits_ > 0 ? kSlower * undelayed_ / hits_ * hits + slice : host;
    undelayed_ += std::min(seen.undelayed, most);
    hits_ += hits;
    const double each = hits_ > 0 ? undelayed_ / hits_ : 0;
    // By noise a small dose may have taken less than none. Were that left out, what is above would
    // stay, and make it larger than it is.
    const double injected = seen.measured - each * static_cast<double>(seen.delays) - below_;
    below_ = std::clamp(-injected, 0.0, slice);
    return static_cast<uint64_t>(std::max(injected, 0.0));
}

} // namespace speedbump::experiment
