// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "engine/inprocess/region.h"

namespace speedbump::engine::inprocess {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGiB = 1 << 30;

TEST(Region, ReadsMappings) {
    const auto spans = parse_spans(
        "55d000000000-55d000001000 r-xp 00002000 fd:01 77   /usr/bin/x y\n"
        "garbage\n"
        "55d000100000-55d000200000 rw-p 00000000 00:00 0    [heap]\n"
        "7f0000000000-7f0000001000 rwxs 00000000 00:05 9    /dev/shm/z\n");
    ASSERT_EQ(spans.size(), 3u);
    EXPECT_EQ(spans[0].offset, 0x2000u);
    EXPECT_EQ(spans[0].inode, 77u);
    EXPECT_TRUE(spans[0].executable && !spans[0].writable && !spans[0].shared);
    EXPECT_TRUE(spans[1].is_heap);
    EXPECT_TRUE(spans[2].shared && spans[2].writable);
}

Span at(uint64_t start, uint64_t end) {
    Span span;
    span.start = start;
    span.end = end;
    return span;
}

TEST(Region, LiesBelowTheCodeWhereThatIsFree) {
    const uint64_t code = 16 * kGiB;
    const auto place = free_place({at(code, code + kMiB)}, code, code + kMiB, 4 * kMiB);
    ASSERT_TRUE(place);
    EXPECT_LT(*place + 4 * kMiB, code);
    EXPECT_LT(code - *place, kGiB);
    EXPECT_EQ(*place % 4096, 0u);
}

TEST(Region, IsWithinReachOrNowhere) {
    const uint64_t code = 16 * kGiB;
    const auto all = {at(code - 3 * kGiB, code), at(code, code + kMiB),
                      at(code + kMiB, code + 3 * kGiB)};
    EXPECT_FALSE(free_place(all, code, code + kMiB, kMiB));
}

TEST(Region, BeginsOnAPageWherever) {
    const uint64_t low = 16 * kGiB + 123, high = low + kMiB;
    const auto place = free_place({}, low, high, kMiB);
    ASSERT_TRUE(place);
    EXPECT_EQ(*place % 4096, 0u);
    EXPECT_GE(*place, high - kGiB);
}

TEST(Region, LeavesTheHeapRoomToGrow) {
    const uint64_t code = 4 * kMiB;
    Span heap = at(5 * kMiB, 6 * kMiB);
    heap.is_heap = true;
    const auto place = free_place({at(code, 5 * kMiB), heap}, code, 5 * kMiB, 8 * kMiB);
    ASSERT_TRUE(place);
    EXPECT_GE(*place, heap.end + 512 * kMiB);
    EXPECT_LE(*place + 8 * kMiB, code + kGiB);
}

} // namespace
} // namespace speedbump::engine::inprocess
