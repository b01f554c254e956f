// SPDX-License-Identifier: MIT
#include "experiment/model/parts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "experiment/model/effects.h"
#include "experiment/model/regression.h"
#include "util/numbers.h"

namespace speedbump::experiment {
namespace {

constexpr double kSliceNs = 4e6;

struct Counted {
    SlicedRun run;
    std::vector<uint64_t> since_ns;
};

// Units of one function, one after the other: each is told the slice it begins in, and adds what it
// takes, in ns.
Counted count(size_t slices, const std::function<double(size_t slice)>& take) {
    Counted counted;
    counted.run.slice_ns = kSliceNs;
    counted.run.units.assign(slices, 0);
    counted.since_ns.assign(slices, 0);
    for (double now = 0;;) {
        now += take(static_cast<size_t>(now / kSliceNs));
        const auto slice = static_cast<size_t>(now / kSliceNs);
        if (slice >= slices) return counted;
        ++counted.run.units[slice];
        counted.since_ns[slice] += static_cast<uint64_t>(std::fmod(now, kSliceNs));
    }
}

// A function of all of a unit, of `unit_ns`, that has doses of a quarter of it.
Counted count_serial(size_t slices, double unit_ns, uint64_t seed) {
    TargetSlices target;
    target.injected.assign(slices, 0);
    target.delays.assign(slices, 0);
    for (size_t stage = 0; target.steps.size() < slices; ++stage)
        for (const Step& step : stage_of(seed, 0, stage)) target.steps.push_back(step);
    target.steps.resize(slices);
    Counted counted = count(slices, [&](size_t slice) {
        if (slice >= slices || !target.steps[slice].on) return unit_ns;
        const double delay = unit_ns / 4 * share_of(target.steps[slice].level);
        target.injected[slice] += delay;
        target.delays[slice] += 1;
        return unit_ns + delay;
    });
    counted.run.targets.push_back(target);
    return counted;
}

double criticality_of(const SlicedRun& run) {
    const auto effects = find_effects(regress(run, find_response(run)), {});
    return effects.empty() ? NAN : effects[0].criticality.value;
}

} // namespace

TEST(Parts, OfEvenUnitsEachSliceHasAsMany) {
    for (const double each : {0.3, 0.7, 1.0, 2.5, 10.49}) {
        Counted counted = count(400, [each](size_t) { return kSliceNs / each; });
        count_parts(counted.run, counted.since_ns);
        ASSERT_EQ(counted.run.lead, static_cast<size_t>(std::ceil(1 / each))) << each;
        ASSERT_EQ(counted.run.units.size(), 400 - counted.run.lead) << each;
        // Nobody knows when the first unit began.
        for (size_t slice = static_cast<size_t>(1 / each) + 1; slice < counted.run.units.size();
             ++slice)
            EXPECT_NEAR(counted.run.units[slice], each, each * 0.02) << slice;
    }
}

TEST(Parts, NoUnitIsLost) {
    Counted counted = count_serial(2000, 0.9e6, 5);
    const double all = std::accumulate(counted.run.units.begin(), counted.run.units.end(), 0.0);
    count_parts(counted.run, counted.since_ns);
    const double parts = std::accumulate(counted.run.units.begin(), counted.run.units.end(), 0.0);
    EXPECT_NEAR(parts, all, 2 * kSliceNs / 0.9e6); // but of the slices at the end
}

TEST(Parts, DosesAreThoseOfAsManySlicesLater) {
    Counted counted = count_serial(200, 5e6, 1); // two units in three slices at most
    const TargetSlices before = counted.run.targets[0];
    count_parts(counted.run, counted.since_ns);
    ASSERT_GE(counted.run.lead, 2u);
    for (const TargetSlices& target : counted.run.targets) {
        ASSERT_EQ(target.steps.size(), counted.run.units.size());
        ASSERT_EQ(target.injected.size(), counted.run.units.size());
        ASSERT_EQ(target.delays.size(), counted.run.units.size());
        EXPECT_EQ(target.steps[0].on, before.steps[counted.run.lead].on);
        EXPECT_EQ(target.injected[7], before.injected[counted.run.lead + 7]);
    }
}

// Where they would tell less, or nothing.
TEST(Parts, AreNotCountedOfManyUnitsNorOfLongOnes) {
    for (const double each : {0.1, 40.0}) {
        Counted counted = count(200, [each](size_t) { return kSliceNs / each; });
        const std::vector<double> before = counted.run.units;
        count_parts(counted.run, counted.since_ns);
        EXPECT_EQ(counted.run.units, before) << each;
        EXPECT_EQ(counted.run.lead, 0u) << each;
    }
    Counted unknown = count(200, [](size_t) { return 1e6; });
    const std::vector<double> before = unknown.run.units;
    count_parts(unknown.run, {});
    EXPECT_EQ(unknown.run.units, before);
    SlicedRun nothing;
    nothing.slice_ns = kSliceNs;
    count_parts(nothing, {});
    EXPECT_TRUE(nothing.units.empty());
}

// Targets wrote them.
TEST(Parts, TimesThatCannotBeAreNoDisaster) {
    Counted counted = count(300, [](size_t) { return 1e6; });
    for (size_t slice = 0; slice < 300; slice += 3) counted.since_ns[slice] = UINT64_MAX;
    for (size_t slice = 1; slice < 300; slice += 3) counted.since_ns[slice] = 0;
    count_parts(counted.run, counted.since_ns);
    double sum = 0;
    for (const double units : counted.run.units) {
        EXPECT_GE(units, 0);
        sum += units;
    }
    EXPECT_NEAR(sum, 1200, 8);
}

// Units like clockwork, of which slices have ten and a half: a dose moves the edges of the slices
// after it through the units, the same way each time. By their number alone that seems to be an
// effect that goes on for several slices.
TEST(Parts, TellWhatTheNumberOfUnitsDoesNot) {
    std::vector<double> by_number, by_parts;
    for (uint64_t seed = 1; seed <= 40; ++seed) {
        Counted counted = count_serial(3000, kSliceNs / 10.5, seed);
        by_number.push_back(std::abs(criticality_of(counted.run) - 1));
        count_parts(counted.run, counted.since_ns);
        by_parts.push_back(std::abs(criticality_of(counted.run) - 1));
    }
    EXPECT_LT(median(by_parts), median(by_number) / 4);
    EXPECT_LT(median(by_parts), 0.003);
}

// A batch of 64 units at once, in every third slice: it is batches that the edges lie between.
TEST(Parts, TellOfUnitsThatAreDoneTogether) {
    std::vector<double> by_parts;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        Counted counted = count_serial(4000, 3 * kSliceNs, seed);
        for (double& units : counted.run.units) units *= 64;
        for (uint64_t& since : counted.since_ns) since *= 64;
        count_parts(counted.run, counted.since_ns);
        ASSERT_GE(counted.run.lead, 3u);
        by_parts.push_back(std::abs(criticality_of(counted.run) - 1));
    }
    EXPECT_LT(median(by_parts), 0.05);
}

// Steps that take two slices each.
TEST(Parts, TellOfUnitsLongerThanASlice) {
    std::vector<double> by_parts;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        Counted counted = count_serial(4000, 2 * kSliceNs, seed);
        count_parts(counted.run, counted.since_ns);
        by_parts.push_back(std::abs(criticality_of(counted.run) - 1));
    }
    EXPECT_LT(median(by_parts), 0.03);
}

} // namespace speedbump::experiment
