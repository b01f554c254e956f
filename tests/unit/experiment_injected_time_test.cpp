// SPDX-License-Identifier: MIT
#include "experiment/injected_time.h"

#include <gtest/gtest.h>

namespace speedbump::experiment {
namespace {

constexpr double kSlice = 1e6, kHost = 8 * kSlice;

TEST(InjectedTime, NoiseBelowNoneIsTakenOffLaterSlices) {
    InjectedTime injected;
    EXPECT_EQ(injected.add({.hits = 100, .undelayed = 10'000}, kSlice, kHost), 0u); // 100 ns each
    uint64_t sum = 0;
    for (int slice = 0; slice < 1000; ++slice) // 10 ns each, in noise of 50
        sum += injected.add(
            {.hits = 100, .delays = 100, .measured = slice % 2 == 0 ? 6'000.0 : 16'000.0}, kSlice,
            kHost);
    EXPECT_EQ(sum, 1'000'000u);
    EXPECT_EQ(injected.add({.hits = 1, .delays = 1, .measured = 600}, kSlice, kHost), 500u);
}

// A count that is none is forgotten after some slices.
TEST(InjectedTime, ItOwesNoMoreThanASlice) {
    InjectedTime injected;
    injected.add({.hits = 1, .undelayed = 100}, kSlice, kHost);
    EXPECT_EQ(injected.add({.hits = 1, .delays = uint64_t{1} << 40}, kSlice, kHost), 0u);
    EXPECT_EQ(injected.add({.hits = 10, .delays = 10, .measured = 1'500'000 + 1000}, kSlice, kHost),
              500'000u);
}

// Threads that stand within a hit for seconds, all of them: on a host of many CPUs, too.
TEST(InjectedTime, OneSliceDoesNotSpoilTheMean) {
    InjectedTime injected;
    for (int slice = 0; slice < 100; ++slice) // 60 ns each
        injected.add({.hits = 1000, .undelayed = 60'000}, kSlice, kHost);
    injected.add({.hits = 1000, .undelayed = 5e9}, kSlice, 128 * kSlice);
    for (int slice = 0; slice < 1000; ++slice)
        injected.add({.hits = 1000, .undelayed = 60'000}, kSlice, kHost);
    const uint64_t told =
        injected.add({.hits = 1000, .delays = 1000, .measured = 2'560'000}, kSlice, kHost);
    EXPECT_NEAR(static_cast<double>(told), 2'500'000, 1500);
}

// The first slice says nothing of the next: what it is like is told by some.
TEST(InjectedTime, WhatGetsSlowerIsBelieved) {
    InjectedTime injected;
    injected.add({.hits = 1000, .undelayed = 1000}, kSlice, kHost);
    for (int slice = 0; slice < 2000; ++slice) // seven CPUs' time
        injected.add({.hits = 1000, .undelayed = 7e6}, kSlice, kHost);
    EXPECT_NEAR(static_cast<double>(
                    injected.add({.hits = 1, .delays = 1, .measured = 17'000}, kSlice, kHost)),
                10'000, 100);
}

} // namespace
} // namespace speedbump::experiment
