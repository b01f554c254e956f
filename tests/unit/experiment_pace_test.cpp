// SPDX-License-Identifier: MIT
#include "experiment/pace.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace speedbump::experiment {
namespace {

constexpr double kSecond = 1e9;
constexpr uint64_t kTick = 50'000'000;

// A service's running total at each tick of a guard.
class Looked {
  public:
    // So many seconds in which a unit takes so long; gives when the watch told, in seconds.
    std::optional<double> go_on(double seconds, double period_ns) {
        const uint64_t begin = at_ns_;
        std::optional<double> told;
        while (static_cast<double>(at_ns_ - begin) < seconds * kSecond) {
            at_ns_ += kTick;
            units_ += static_cast<double>(kTick) / period_ns;
            if (watch_.look(at_ns_, static_cast<uint64_t>(units_), 0.5, usual_) && !told)
                told = static_cast<double>(at_ns_ - begin) / kSecond;
        }
        return told;
    }
    explicit Looked(double usual_ns) : usual_(usual_ns) { watch_.look(0, 0, 0.5, usual_); }

  private:
    SlowdownWatch watch_;
    double usual_;
    uint64_t at_ns_ = 0;
    double units_ = 0;
};

TEST(SlowdownWatch, SeesASlowServiceSlowed) {
    for (const double rate : {3.0, 20.0, 99.0, 1e5}) {
        const double usual = kSecond / rate;
        for (const double before : {0.0, 1.0, 1000.0, 1033.0}) { // seconds in which all was well
            Looked service(usual);
            EXPECT_FALSE(service.go_on(before, usual)) << rate;
            const auto told = service.go_on(4 * (1 + 100 / rate), 3 * usual);
            ASSERT_TRUE(told) << rate << " units a second after " << before << " s";
            // Of a unit in 10 us at the next look, else by 200 units that are missing.
            EXPECT_LE(*told, rate > 1e4 ? 0.05 : 1.1 * (1 + 200 / rate)) << rate;
        }
    }
}

TEST(SlowdownWatch, LetsWithinTheLimitPass) {
    for (const double rate : {3.0, 20.0, 99.0, 1e5}) {
        Looked service(kSecond / rate);
        EXPECT_FALSE(service.go_on(1000, 1.4 * kSecond / rate)) << rate;
    }
}

// Units that come at random are no slowdown; limit and noise are those of the longest look back.
TEST(SlowdownWatch, ChanceIsNoSlowdown) {
    std::mt19937_64 random(3);
    size_t told = 0;
    constexpr size_t kLooks = 20 * 3600;
    for (const double rate : {3.0, 20.0, 99.0}) {
        SlowdownWatch watch;
        std::poisson_distribution<uint64_t> draw(rate * 0.05);
        uint64_t units = 0;
        for (uint64_t look = 1; look <= kLooks; ++look) {
            units += draw(random);
            told += watch.look(look * kTick, units, 0.5, kSecond / rate).has_value();
        }
    }
    EXPECT_LE(told, 3 * kLooks / 10000);
}

TEST(SlowdownWatch, ATotalThatBeginsAnewIsNoSlowdown) {
    SlowdownWatch watch;
    for (uint64_t look = 1; look <= 400; ++look)
        EXPECT_FALSE(watch.look(look * kTick, (look % 100) * 50, 0.1, kSecond / 1000)) << look;
}

TEST(Strikes, OfASlowServiceAreFurtherApart) {
    constexpr uint64_t kEach = 4'000'000'000;
    for (const double rate : {1000.0, 20.0}) {
        Strikes strikes;
        EXPECT_FALSE(strikes.add(kEach, kSecond / rate));
        EXPECT_FALSE(strikes.add(2 * kEach, kSecond / rate));
        EXPECT_TRUE(strikes.add(3 * kEach, kSecond / rate));
        strikes.clear();
        EXPECT_FALSE(strikes.add(4 * kEach, kSecond / rate));
        EXPECT_FALSE(strikes.add(6 * kEach, kSecond / rate));
        EXPECT_EQ(strikes.add(8 * kEach, kSecond / rate), rate < 50) << rate;
    }
    EXPECT_EQ(time_of_check(kSecond / 1000), std::chrono::milliseconds(250));
    EXPECT_EQ(time_of_check(kSecond / 10), std::chrono::seconds(2));
    EXPECT_EQ(time_of_check(kSecond), std::chrono::seconds(5));
}

// What the warm-up finds out of slices of 250 ms.
double settled(double rate, double jitter, bool& is_steady) {
    std::mt19937_64 random(1);
    std::normal_distribution<double> normal;
    SettlingPace pace;
    double next = 0.4 * kSecond / rate;
    for (double at = 0.25; at <= 10 && !pace.is_steady(); at += 0.25) {
        uint64_t units = 0;
        for (; next <= at * kSecond; ++units)
            next += kSecond / rate * std::max(0.1, 1 + jitter * normal(random));
        pace.add(0.25 * kSecond, units);
    }
    is_steady = pace.is_steady();
    return pace.has_ticked() ? kSecond / pace.period() : 0;
}

TEST(SettlingPace, KnowsThePaceOfASlowService) {
    for (const double rate : {1.0, 1.3, 2.0, 3.0, 4.1, 7.0, 13.0, 50.0, 1000.0})
        for (const double jitter : {0.0, 0.1}) {
            bool is_steady = false;
            EXPECT_NEAR(settled(rate, jitter, is_steady) / rate, 1, 0.16) << rate;
            if (rate >= 13) {
                EXPECT_TRUE(is_steady) << rate;
            }
        }
}

TEST(SettlingPace, NothingIsNoPace) {
    SettlingPace pace;
    for (int i = 0; i < 20; ++i) pace.add(0.25 * kSecond, 0);
    EXPECT_FALSE(pace.has_ticked());
    pace.add(0.25 * kSecond, 1);
    EXPECT_TRUE(pace.has_ticked());
    EXPECT_FALSE(pace.is_steady());
    EXPECT_NEAR(pace.period(), 21 * 0.25 * kSecond, 1);
    EXPECT_FALSE(pace.has_stretch());
    pace.add(0.25 * kSecond, 4);
    EXPECT_TRUE(pace.has_stretch());
}

} // namespace
} // namespace speedbump::experiment
