// SPDX-License-Identifier: MIT
#include "fleet/clock_offset.h"

#include <algorithm>
#include <cstdlib>

namespace speedbump::fleet {

namespace {

constexpr uint64_t kLongestUp = uint64_t{1} << 60; // ns that no clock shows: 36 years

} // namespace

std::optional<int64_t> ClockOffset::add(uint64_t asked, uint64_t theirs, uint64_t heard) {
    if (heard < asked || std::max(heard, theirs) > kLongestUp) return std::nullopt;
    const auto before = best();
    const uint64_t last = trips_.empty() ? heard : trips_.back().heard;
    trips_.push_back({asked, theirs, heard});
    if (trips_.size() > kKept) trips_.pop_front();
    if (!before || heard < last) return std::nullopt;
    const uint64_t half = (heard - asked) / 2;
    const int64_t ahead = static_cast<int64_t>(theirs) - static_cast<int64_t>(asked + half);
    const auto drift = static_cast<uint64_t>(static_cast<double>(heard - last) * kDrift);
    const auto apart = static_cast<uint64_t>(std::abs(ahead - before->ahead));
    if (apart <= before->error + drift + half + 1) return std::nullopt;
    trips_.erase(trips_.begin(), trips_.end() - 1);
    return ahead - before->ahead;
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
