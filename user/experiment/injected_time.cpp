// SPDX-License-Identifier: MIT
#include "experiment/injected_time.h"

#include <algorithm>

namespace speedbump::experiment {

uint64_t InjectedTime::add(const Hits& seen, double most) {
    // A process that is stopped within a hit takes seconds for it: one slice can't have taken more
    // than there was of it, or the mean would be wrong for all that come.
    undelayed_ += std::min(seen.undelayed, most);
    hits_ += static_cast<double>(seen.hits - std::min(seen.hits, seen.delays));
    const double each = hits_ > 0 ? undelayed_ / hits_ : 0;
    // By noise a small dose may have taken less than none. Were that left out, what is above would
    // stay, and make it larger than it is.
    const double injected = seen.measured - each * static_cast<double>(seen.delays) - below_;
    below_ = std::clamp(-injected, 0.0, most);
    return static_cast<uint64_t>(std::max(injected, 0.0));
}

} // namespace speedbump::experiment
