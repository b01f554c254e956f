// SPDX-License-Identifier: MIT
#include "util/rate_limit.h"

#include <gtest/gtest.h>

#include <chrono>

namespace speedbump {
namespace {

using std::chrono::seconds;

TEST(RateLimit, HoldsBackWhatIsMoreInAPeriod) {
    RateLimit limit(3, seconds(60));
    const Clock::time_point start{};
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(limit.admit(start + seconds(i)));
    for (int i = 3; i < 60; ++i) EXPECT_FALSE(limit.admit(start + seconds(i)));
    EXPECT_EQ(limit.take_held_back(), 57u);
    EXPECT_EQ(limit.take_held_back(), 0u);
}

TEST(RateLimit, BeginsAnewWithTheNextPeriod) {
    RateLimit limit(1, seconds(60));
    const Clock::time_point start = Clock::time_point{} + seconds(1000);
    EXPECT_TRUE(limit.admit(start));
    EXPECT_FALSE(limit.admit(start + seconds(59)));
    EXPECT_TRUE(limit.admit(start + seconds(60)));
    EXPECT_FALSE(limit.admit(start + seconds(61)));
    EXPECT_EQ(limit.take_held_back(), 2u) << "of both periods";
    EXPECT_TRUE(limit.admit(start + seconds(500)));
    EXPECT_FALSE(limit.admit(start + seconds(559))) << "the period began with the event at 500 s";
}

} // namespace
} // namespace speedbump
