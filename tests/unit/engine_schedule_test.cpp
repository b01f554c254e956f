// SPDX-License-Identifier: MIT
// A schedule as its hooks read it, in memory of this test's.
#include "engine/schedule.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "engine/rings.h"

namespace speedbump::engine {
namespace {

using namespace std::chrono_literals;

constexpr uint32_t kColumns = 3;
constexpr uint64_t kStart = 1'000'000;

// Two rings of counts, of which the second appears later.
class ScheduleTest : public testing::Test {
  protected:
    Schedule make() {
        return {shared, doses.data(), kColumns, 2, [this](size_t ring) {
                    ++looks;
                    return ring == 0 || second_is_there ? counts[ring].data() : nullptr;
                }};
    }
    // As a hook does it: the delay of a hit, 0 for none.
    uint64_t hit(size_t ring, uint32_t column, uint64_t now, uint64_t late = 0) {
        __u64 since_ns = 0;
        const uint64_t slice = sb_slice_at(&shared, now, &since_ns);
        if (slice == SB_NO_SLICE) return 0;
        const uint32_t cell = sb_cell(slice, column, kColumns);
        const uint64_t delay = doses[cell] == 0 ? 0 : sb_within_schedule(&shared, now, doses[cell]);
        sb_slice_counts& mine = counts[ring][cell];
        ++mine.hits;
        mine.since_ns += since_ns;
        mine.delays += delay > 0;
        (delay > 0 ? mine.measured_ns : mine.undelayed_ns) += delay + late;
        return delay;
    }

    sb_schedule shared{};
    std::vector<__u64> doses = std::vector<__u64>(SB_RING_SLICES * kColumns);
    std::vector<sb_slice_counts> counts[2] = {
        std::vector<sb_slice_counts>(SB_RING_SLICES * kColumns),
        std::vector<sb_slice_counts>(SB_RING_SLICES* kColumns)};
    bool second_is_there = false;
    size_t looks = 0; // at a ring
};

TEST_F(ScheduleTest, TheTimeDecidesWhichDelayItIs) {
    Schedule schedule = make();
    EXPECT_EQ(hit(0, 0, kStart), 0u); // none has begun
    schedule.begin(kStart, 1000ns);
    EXPECT_EQ(hit(0, 0, kStart), 0u); // no slice is there
    schedule.add(std::vector<nanoseconds>{10ns, 0ns, 30ns});
    schedule.add(std::vector<nanoseconds>{0ns, 21ns});
    EXPECT_EQ(hit(0, 0, kStart - 1), 0u);
    EXPECT_EQ(hit(0, 0, kStart), 10u);
    EXPECT_EQ(hit(0, 1, kStart + 999), 0u);
    EXPECT_EQ(hit(0, 2, kStart + 999), 30u);
    EXPECT_EQ(hit(0, 0, kStart + 1000), 0u);
    EXPECT_EQ(hit(0, 1, kStart + 1000), 21u);
    EXPECT_EQ(hit(0, 2, kStart + 1000), 0u);  // a column that was not named
    EXPECT_EQ(hit(0, 1, kStart + 1990), 10u); // it ends with the schedule
    EXPECT_EQ(hit(0, 1, kStart + 2000), 0u);  // which has run out
    schedule.end();
    EXPECT_EQ(hit(0, 0, kStart), 0u);
}

TEST_F(ScheduleTest, CountsAreOfTheSliceAndOfAllRings) {
    Schedule schedule = make();
    schedule.begin(kStart, 1000ns);
    for (int slice = 0; slice < 4; ++slice) schedule.add(std::vector<nanoseconds>{10ns, 20ns, 0ns});
    hit(0, 0, kStart + 100, 3);
    hit(0, 2, kStart + 100, 5);
    second_is_there = true;
    hit(1, 0, kStart + 900);
    hit(1, 1, kStart + 1500);
    std::vector<SliceCounts> sums(kColumns);
    schedule.take(0, sums);
    EXPECT_EQ(sums[0].hits, 2u);
    EXPECT_EQ(sums[0].delays, 2u);
    EXPECT_EQ(sums[0].measured, 23ns);
    EXPECT_EQ(sums[1].hits, 0u);
    EXPECT_EQ(sums[2].hits, 1u);
    EXPECT_EQ(sums[2].delays, 0u);
    EXPECT_EQ(sums[2].measured, 0ns);
    EXPECT_EQ(sums[2].undelayed, 5ns);
    sums.assign(kColumns, {});
    schedule.take(1, sums);
    EXPECT_EQ(sums[0].hits, 0u);
    EXPECT_EQ(sums[1].measured, 20ns);
}

TEST_F(ScheduleTest, TheRingIsUsedAgain) {
    Schedule schedule = make();
    schedule.begin(kStart, 1000ns);
    std::vector<SliceCounts> sums(kColumns);
    for (uint64_t slice = 0; slice < 3 * SB_RING_SLICES; ++slice) {
        schedule.add(std::vector<nanoseconds>{nanoseconds(slice % 7)});
        EXPECT_EQ(hit(0, 0, kStart + slice * 1000), slice % 7);
        sums.assign(kColumns, {});
        schedule.take(slice, sums);
        EXPECT_EQ(sums[0].hits, 1u);
        EXPECT_EQ(sums[0].measured, nanoseconds(slice % 7));
    }
}

TEST_F(ScheduleTest, AnotherOneHasNothingOfTheOneBefore) {
    Schedule schedule = make();
    schedule.begin(kStart, 1000ns);
    schedule.add(std::vector<nanoseconds>{10ns});
    hit(0, 0, kStart);
    schedule.clear();
    EXPECT_EQ(hit(0, 0, kStart), 0u); // it has ended
    schedule.begin(2 * kStart, 500ns);
    EXPECT_EQ(hit(0, 0, 2 * kStart), 0u);
    schedule.add(std::vector<nanoseconds>{40ns});
    std::vector<SliceCounts> sums(kColumns);
    EXPECT_EQ(hit(0, 0, 2 * kStart + 499), 1u);
    schedule.take(0, sums);
    EXPECT_EQ(sums[0].hits, 1u);
    EXPECT_EQ(sums[0].since, 499ns);
    EXPECT_EQ(sums[0].measured, 1ns);
}

// There are as many as the host has CPUs, and the start is a few ms ahead.
TEST_F(ScheduleTest, BeginningLooksAtNoRing) {
    Schedule schedule = make();
    schedule.clear();
    EXPECT_GT(looks, 0u);
    looks = 0;
    schedule.begin(kStart, 1000ns);
    for (uint64_t slice = 0; slice < SB_RING_SLICES; ++slice)
        schedule.add(std::vector<nanoseconds>{10ns});
    EXPECT_EQ(looks, 0u);
}

// Ten million hits of some CPUs in a slice of 50 ms, in its middle.
TEST_F(ScheduleTest, ASumOfTimesMayBeLarge) {
    constexpr uint64_t kSince = 10'000'000ull * 25'000'000;
    Schedule schedule = make();
    schedule.begin(kStart, 50ms);
    counts[0][0].since_ns = kSince;
    std::vector<SliceCounts> sums(kColumns);
    schedule.take(0, sums);
    EXPECT_EQ(sums[0].since, nanoseconds(kSince));
    std::vector<sb_slice_units> of_cpus(SB_RING_SLICES);
    SliceUnits units(of_cpus.data(), 1, 1);
    of_cpus[0].since_ns = kSince;
    EXPECT_EQ(units.take(0, 0).since, nanoseconds(kSince));
}

// Rings may be a target's, which writes what it likes.
TEST_F(ScheduleTest, CountsThatShrinkOrLeapAreNoDisaster) {
    Schedule schedule = make();
    schedule.begin(kStart, 1000ns);
    std::vector<SliceCounts> sums(kColumns);
    counts[0][0] = {.hits = ~0ull,
                    .since_ns = ~0ull,
                    .delays = ~0ull,
                    .measured_ns = ~0ull,
                    .undelayed_ns = ~0ull};
    schedule.take(0, sums);
    EXPECT_GE(sums[0].measured, 0ns);
    EXPECT_GE(sums[0].since, 0ns);
    for (int many = 0; many < 20'000; ++many) { // as of so many rings
        counts[0][0].since_ns = many % 2 == 0 ? 0 : ~0ull;
        schedule.take(0, sums);
        ASSERT_GE(sums[0].since, 0ns);
    }
    counts[0][0] = {};
    sums.assign(kColumns, {});
    schedule.take(0, sums);
    EXPECT_EQ(sums[0].hits, 0u);
    EXPECT_EQ(sums[0].measured, 0ns);
}

TEST_F(ScheduleTest, NoDelayIsLongerThanTheLongest) {
    Schedule schedule = make();
    schedule.begin(kStart, 1000ns);
    schedule.add(std::vector<nanoseconds>{std::chrono::hours(1), -1ns});
    EXPECT_EQ(doses[0], SB_MAX_DELAY_NS);
    EXPECT_EQ(doses[1], SB_MAX_DELAY_NS);
}

// One that begins in the future, read by a hook meanwhile: a time from before its start finds a
// slice of the schedule before, or none.
TEST_F(ScheduleTest, ReadersSeeOneOrTheOther) {
    Schedule schedule = make();
    std::atomic<uint64_t> now{kStart};
    std::atomic<bool> is_over{false};
    std::atomic<uint64_t> wrong{0};
    std::thread hook([&] {
        while (!is_over) {
            const uint64_t at = now.load();
            __u64 since_ns = 0;
            const uint64_t slice = sb_slice_at(&shared, at, &since_ns);
            if (slice == SB_NO_SLICE) continue;
            if (slice != 0) ++wrong; // each schedule has one slice, and `at` lies in it
        }
    });
    for (uint64_t round = 1; round <= 20'000; ++round) {
        const uint64_t length = round % 2 == 0 ? 10 : 1000;
        schedule.clear();
        schedule.begin(kStart + round * 5000, nanoseconds(length));
        schedule.add(std::vector<nanoseconds>{10ns});
        now = kStart + round * 5000 + length / 2;
    }
    is_over = true;
    hook.join();
    EXPECT_EQ(wrong, 0u);
}

TEST(Rings, AreAsManyAsCpusAndTakeNoMoreMemoryThanTheyAreWorth) {
    constexpr uint64_t kMiB = 1 << 20;
    EXPECT_EQ(rings_for(1, 4096), 1u);
    EXPECT_EQ(rings_for(3, 4096), 4u);
    EXPECT_EQ(rings_for(64, kMiB), 64u);
    EXPECT_EQ(rings_for(65, kMiB), 64u);
    EXPECT_EQ(rings_for(8192, 4096), 8192u);
    EXPECT_EQ(rings_for(8192, 10 * kMiB), 4u); // of SB_MAX_COLUMNS
    EXPECT_EQ(rings_for(2, 100 * kMiB), 1u);
}

TEST(SliceUnits, AreSumsOverCpus) {
    constexpr uint32_t kPoints = 2;
    std::vector<sb_slice_units> counts(3 * SB_RING_SLICES * kPoints);
    SliceUnits units(counts.data(), 3, kPoints);
    const auto at = [&](size_t cpu, uint64_t slice, uint32_t point) -> sb_slice_units& {
        return counts[cpu * SB_RING_SLICES * kPoints + sb_cell(slice, point, kPoints)];
    };
    at(0, 5, 1) = {4, 900};
    at(2, 5, 1) = {3, 50};
    at(1, 5, 0) = {100, 7};
    const SliceProgress first = units.take(5, 1);
    EXPECT_EQ(first.units, 7u);
    EXPECT_EQ(first.since, 950ns);
    at(2, 5 + SB_RING_SLICES, 1).units += 2;
    at(2, 5 + SB_RING_SLICES, 1).since_ns += 11;
    const SliceProgress later = units.take(5 + SB_RING_SLICES, 1);
    EXPECT_EQ(later.units, 2u);
    EXPECT_EQ(later.since, 11ns);
    EXPECT_EQ(units.take(5, 0).units, 100u);
    at(1, 6, 0) = {9, 90};
    units.clear();
    EXPECT_EQ(units.take(6, 0).units, 0u);
}

} // namespace
} // namespace speedbump::engine
