// SPDX-License-Identifier: MIT
#include "util/numbers.h"

#include <gtest/gtest.h>

namespace speedbump {
namespace {

TEST(Median, IsTheMiddle) {
    EXPECT_EQ(median({}), 0);
    EXPECT_EQ(median({3}), 3);
    EXPECT_EQ(median({9, 1, 5}), 5);
    EXPECT_EQ(median({9, 1, 5, 2}), 3.5);
}

} // namespace
} // namespace speedbump
