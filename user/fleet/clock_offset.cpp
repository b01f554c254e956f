// SPDX-License-Identifier: MIT
#include "fleet/clock_offset.h"

#include <algorithm>

namespace speedbump::fleet {

namespace {

constexpr uint64_t kLongestUp = uint64_t{1} << 60; // ns that no clock shows: 36 years

} // namespace

void ClockOffset::add(uint64_t asked, uint64_t theirs, uint64_t heard) {
    if (heard < asked || std::max(heard, theirs) > kLongestUp) return;
    trips_.push_back({asked, theirs, heard});
    if (trips_.size() > kKept) trips_.pop_front();
}

std::optional<Offset> ClockOffset::best() const {
    if (trips_.empty()) return std::nullopt;
    const uint64_t now = trips_.back().heard;
    Offset best{0, UINT64_MAX};
    for (const Trip& trip : trips_) {
        const uint64_t half = (trip.heard - trip.asked) / 2;
        const uint64_t age = now > trip.heard ? now - trip.heard : 0;
        const uint64_t error = half + 1 + static_cast<uint64_t>(static_cast<double>(age) * kDrift);
        if (error >= best.error) continue;
        const auto middle = static_cast<int64_t>(trip.asked + half);
        best = {static_cast<int64_t>(trip.theirs) - middle, error};
    }
    return best;
}

} // namespace speedbump::fleet
