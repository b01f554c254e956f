// SPDX-License-Identifier: MIT
#include "util/parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace speedbump {
namespace {

using Range = std::pair<size_t, size_t>;

std::vector<Range> parts_of(size_t size, size_t grain) {
    return in_parts(size, grain, [](size_t begin, size_t end) { return Range{begin, end}; });
}

TEST(InParts, CoverAllOnceInOrder) {
    for (const size_t size : {1u, 15u, 16u, 17u, 100u, 4096u, 4099u}) {
        size_t at = 0;
        for (const auto& [begin, end] : parts_of(size, 16)) {
            EXPECT_EQ(begin, at) << size;
            EXPECT_EQ(end, std::min<size_t>(begin + 16, size)) << size;
            at = end;
        }
        EXPECT_EQ(at, size);
    }
    EXPECT_TRUE(parts_of(0, 16).empty());
}

TEST(InParts, ThrowToTheCaller) {
    const auto fail_at_the_end = [](size_t, size_t end) -> int {
        if (end == 1000) throw std::runtime_error("the last part");
        return 0;
    };
    EXPECT_THROW(in_parts(1000, 7, fail_at_the_end), std::runtime_error);
}

} // namespace
} // namespace speedbump
