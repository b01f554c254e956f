// SPDX-License-Identifier: MIT
#include "experiment/model/strip.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

using speedbump::experiment::Strip;

namespace {

constexpr size_t kSlices = 1000;

// Mostly 0, in stretches and alone.
std::vector<double> drawn(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<double> values(kSlices);
    for (size_t i = 0; i < kSlices; ++i)
        if ((i / 50) % 4 == 1 || random() % 40 == 0) values[i] = static_cast<double>(random() % 9);
    return values;
}

double product(const std::vector<double>& a, const std::vector<double>& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

} // namespace

TEST(Strip, IsWhatItWasMadeOf) {
    for (uint64_t seed = 0; seed < 20; ++seed)
        EXPECT_EQ(Strip(drawn(seed)).all(kSlices), drawn(seed));
    const std::vector<double> none(kSlices);
    EXPECT_EQ(Strip(none).all(kSlices), none);
    EXPECT_EQ(Strip(none).sum(), 0);
}

TEST(Strip, SumsAreThoseOfAllSlices) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
        const std::vector<double> a = drawn(seed), b = drawn(seed + 100);
        const Strip strip(a);
        EXPECT_EQ(strip.sum(), std::accumulate(a.begin(), a.end(), 0.0));
        EXPECT_EQ(strip.times(b), product(a, b));
        EXPECT_EQ(strip.times(Strip(b)), product(a, b));
        EXPECT_EQ(Strip(b).times(strip), product(a, b));
        std::vector<double> sum = b;
        strip.add_to(sum, -2);
        for (size_t i = 0; i < kSlices; ++i) EXPECT_EQ(sum[i], b[i] - 2 * a[i]);
    }
}

TEST(Strip, BlocksAddUp) {
    const std::vector<double> a = drawn(1), b = drawn(2);
    const auto blocks = Strip(a).times_by_block(b, 16);
    const auto squares = Strip(a).squares_by_block(kSlices, 16);
    ASSERT_EQ(blocks.size(), (kSlices + 15) / 16);
    ASSERT_EQ(squares.size(), blocks.size());
    EXPECT_EQ(std::accumulate(blocks.begin(), blocks.end(), 0.0), product(a, b));
    EXPECT_EQ(std::accumulate(squares.begin(), squares.end(), 0.0), product(a, a));
    double first = 0;
    for (size_t i = 0; i < 16; ++i) first += a[i] * b[i];
    EXPECT_EQ(blocks[0], first);
}
