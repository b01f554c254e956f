// SPDX-License-Identifier: MIT
#include "experiment/injected_time.h"

#include <gtest/gtest.h>

namespace speedbump::experiment {
namespace {

TEST(InjectedTime, NoiseBelowNoneIsTakenOffLaterSlices) {
    InjectedTime injected;
    EXPECT_EQ(injected.add({.hits = 100, .undelayed = 10'000}, 1e6), 0u); // 100 ns each
    uint64_t sum = 0;
    for (int slice = 0; slice < 1000; ++slice) // 10 ns each, in noise of 50
        sum += injected.add(
            {.hits = 100, .delays = 100, .measured = slice % 2 == 0 ? 6'000.0 : 16'000.0}, 1e6);
    EXPECT_EQ(sum, 1'000'000u);
    EXPECT_EQ(injected.add({.hits = 1, .delays = 1, .measured = 600}, 1e6), 500u);
}

// A count that is none is forgotten after some slices.
TEST(InjectedTime, ItOwesNoMoreThanASlice) {
    InjectedTime injected;
    injected.add({.hits = 1, .undelayed = 100}, 1e6);
    EXPECT_EQ(injected.add({.hits = 1, .delays = uint64_t{1} << 40}, 1e6), 0u);
    EXPECT_EQ(injected.add({.hits = 10, .delays = 10, .measured = 1'500'000 + 1000}, 1e6),
              500'000u);
}

} // namespace
} // namespace speedbump::experiment
