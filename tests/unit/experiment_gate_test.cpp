// SPDX-License-Identifier: MIT
#include "experiment/gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "experiment/anytime.h"
#include "experiment/pace.h"
#include "experiment/pair.h"
#include "report/gate.h"

using namespace speedbump::experiment;
using speedbump::ErrorKind;
using testing::HasSubstr;

namespace {

// Many thousand fits say nothing new to a sanitizer, and take it minutes.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Two services of 100 us a unit in slices of 50 ms, of which b takes longer by `change`.
struct Pair {
    double change = 0;
    double common = 0.2; // noise that both have: of the host
    double own = 0.02;
    double memory = 0;    // of the noise, from slice to slice
    size_t slices = 1200; // a minute
};

struct Measured {
    std::vector<Stretch> a, b;
};

Measured measured(const Pair& pair, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    double noise[3] = {normal(random), normal(random), normal(random)};
    Measured result;
    for (size_t slice = 0; slice < pair.slices; ++slice) {
        for (double& one : noise)
            one = pair.memory * one + std::sqrt(1 - pair.memory * pair.memory) * normal(random);
        const double host = std::exp(pair.common * noise[0]);
        const double slow_a = host * std::exp(pair.own * noise[1]);
        const double slow_b = host * std::exp(pair.own * noise[2]) * (1 + pair.change);
        result.a.push_back({50e6 / 100e3 / slow_a, 50e6});
        result.b.push_back({50e6 / 100e3 / slow_b, 50e6});
    }
    return result;
}

Change change_of(double value, double error) {
    Change change;
    change.progress = "native:exe:f";
    change.what = "time per unit";
    change.a = 100e3;
    change.b = 100e3 * (1 + value);
    change.change = estimate_of(value, error, 12);
    change.p = change.change.p;
    return change;
}

// `blocks` blocks of a slice each in which a unit takes `period`, and its p99 four times as long.
Document document_of(double period, uint64_t seed, size_t blocks = 40) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    Document document;
    document.host = "alpha";
    document.progress = {"latency:exe:f"};
    document.targets.push_back({"+exe:f", Role::kTarget, {"f"}, 1, {nanoseconds(10000)}, {}});
    for (size_t i = 0; i < blocks; ++i) {
        document.blocks.emplace_back();
        for (const ArmKind kind : {ArmKind::kProbe, ArmKind::kSham, ArmKind::kDose}) {
            Slice slice;
            slice.arm = {kind, 0, nanoseconds(kind == ArmKind::kDose ? 10000 : 0)};
            slice.length = nanoseconds(200'000'000);
            slice.start = slice.length * static_cast<int64_t>(3 * i + static_cast<size_t>(kind));
            const double took =
                period * (1 + 0.002 * normal(random)) + (kind == ArmKind::kDose ? 10000 : 0);
            slice.progress = {static_cast<uint64_t>(200e6 / took)};
            slice.progress_time = {slice.length};
            const auto time = static_cast<int64_t>(took);
            slice.latency = {
                Latency{nanoseconds(time), nanoseconds(2 * time), nanoseconds(4 * time)}};
            slice.calls = slice.progress;
            if (kind == ArmKind::kDose)
                slice.injected = nanoseconds(10000) * static_cast<int64_t>(slice.progress[0]);
            document.blocks.back().slices.push_back(std::move(slice));
        }
    }
    document.stopped = "blocks";
    document.complete = true;
    return document;
}

} // namespace

TEST(Pace, IntervalCoversTheChange) {
    if (kSanitized) GTEST_SKIP() << "statistics, not memory";
    Pair white, slow, unlike;
    slow.memory = 0.95; // hangs together over some 20 slices of 1200
    unlike.common = 0;
    unlike.own = 0.2;
    for (Pair pair : {white, slow, unlike}) {
        pair.change = 0.02;
        constexpr size_t kRuns = 1000;
        size_t covered = 0;
        for (uint64_t run = 0; run < kRuns; ++run) {
            const Measured one = measured(pair, run);
            covered += change_side_by_side(one.a, one.b).interval.contains(pair.change);
        }
        EXPECT_GT(covered, 0.93 * kRuns) << pair.memory << " " << pair.own;
        EXPECT_LT(covered, 0.97 * kRuns) << pair.memory << " " << pair.own;
    }
}

TEST(Pace, SideBySideTakesOutWhatBothHave) {
    Pair pair;
    pair.change = 0.01;
    const Measured one = measured(pair, 7);
    const Estimate paired = change_side_by_side(one.a, one.b);
    const Estimate apart = change_apart(pace_of(one.a), pace_of(one.b));
    EXPECT_DOUBLE_EQ(paired.value, apart.value);
    EXPECT_LT(paired.error * 4, apart.error);
}

// Two builds of which each is alone on a CPU, and other work takes from one CPU more than from the
// other.
TEST(Pace, SharesOfTheCpusThatAreNotAlikeAreInTheInterval) {
    for (const double change : {0.0, 0.03}) {
        Pair pair;
        pair.change = (1 + change) / 0.96 - 1; // as b has its CPU for 0.96 of what a has
        const Measured one = measured(pair, 7);
        PairDocument document;
        document.progress = {"native:exe:f"};
        for (size_t i = 0; i < one.a.size(); ++i)
            document.slices.push_back({nanoseconds(0), {{one.a[i], one.b[i]}}});
        document.stopped = "time";
        document.complete = true;
        const auto pace = [&document] { return changes_between(document).changes.at(0); };

        EXPECT_FALSE(pace().change.interval.contains(change)); // nothing is known of the CPUs
        document.ran = {0.5, 0.48};
        document.waited = {0, 0.02};
        EXPECT_TRUE(pace().change.interval.contains(change));
        EXPECT_TRUE(pace().change.interval.contains(pair.change));
        EXPECT_EQ(judge(pace(), 0.01), change > 0 ? Judgement::kWorse : Judgement::kUndecided);
        document.waited = {0.02 / 0.96, 0.02}; // alike
        EXPECT_FALSE(pace().change.interval.contains(change));
    }
}

TEST(Pace, NothingCountedIsNothingKnown) {
    const std::vector<Stretch> none, idle = {{0, 5}, {0, 5}, {0, 5}},
                                     busy = {{9, 5}, {8, 5}, {9, 5}};
    EXPECT_EQ(pace_of(idle).period, 0);
    for (const Estimate& unknown :
         {change_side_by_side(none, none), change_side_by_side(idle, busy),
          change_side_by_side(busy, idle), change_apart(pace_of(busy), pace_of(idle)),
          change_apart(pace_of(std::vector<Stretch>{{9, 5}}), pace_of(busy))}) {
        EXPECT_FALSE(std::isfinite(unknown.error));
        EXPECT_EQ(unknown.p, 1);
        EXPECT_TRUE(unknown.interval.contains(-0.9) && unknown.interval.contains(100));
    }
}

TEST(Gate, JudgesByIntervalAndLimit) {
    EXPECT_EQ(judge(change_of(0.02, 0.001), 0.01), Judgement::kWorse);
    EXPECT_EQ(judge(change_of(-0.02, 0.001), 0.01), Judgement::kNotWorse);
    EXPECT_EQ(judge(change_of(0.0, 0.001), 0.01), Judgement::kNotWorse);
    EXPECT_EQ(judge(change_of(0.005, 0.001), 0.01), Judgement::kNotWorse);
    EXPECT_EQ(judge(change_of(0.009, 0.001), 0.01), Judgement::kNotWorse); // it is 0.9 %, not 1
    EXPECT_EQ(judge(change_of(0.02, 0.02), 0.01), Judgement::kUndecided);
    EXPECT_EQ(judge(change_of(0.0, 0.02), 0.01), Judgement::kUndecided);
    EXPECT_EQ(judge(change_of(0.0, 0.02), 0.10), Judgement::kNotWorse);
}

TEST(Gate, OneThatIsWorseDecides) {
    Changes changes;
    EXPECT_EQ(judge(changes, 0.01), Judgement::kUndecided);
    changes.changes = {change_of(0, 0.001), change_of(0, 0.5)};
    EXPECT_EQ(judge(changes, 0.01), Judgement::kUndecided);
    changes.changes[1].is_pace = false; // a percentile that is not known holds nothing up
    EXPECT_EQ(judge(changes, 0.01), Judgement::kNotWorse);
    changes.changes.push_back(change_of(0.02, 0.001));
    EXPECT_EQ(judge(changes, 0.01), Judgement::kWorse);
    changes.doubts = {"a is invalid"};
    EXPECT_EQ(judge(changes, 0.01), Judgement::kUndecided);
}

TEST(Gate, TellsHowMuchLongerItWouldTake) {
    const Change change = change_of(0, 0.01);
    const double times = times_longer(change, 0.01);
    EXPECT_NEAR(times, std::pow(change.change.interval.half_width() / 0.005, 2), 1e-9);
    EXPECT_THAT(speedbump::report::gate_text({{change}, {}, {}}, 0.01, {}),
                HasSubstr("times as long would tell"));
}

TEST(Gate, ComparesTwoDocuments) {
    const auto same = changes_between(document_of(100e3, 1), document_of(100e3, 2));
    ASSERT_TRUE(same);
    ASSERT_EQ(same->changes.size(), 4u); // the pace, and three percentiles
    EXPECT_THAT(same->doubts, testing::IsEmpty());
    EXPECT_EQ(judge(same->changes[0], 0.01), Judgement::kNotWorse);
    EXPECT_EQ(judge(*same, 0.01), Judgement::kNotWorse);

    const auto worse = changes_between(document_of(100e3, 1), document_of(103e3, 2));
    ASSERT_TRUE(worse);
    EXPECT_NEAR(worse->changes[0].change.value, 0.03, 0.003);
    EXPECT_EQ(judge(*worse, 0.01), Judgement::kWorse);
    EXPECT_EQ(judge(*worse, 0.05), Judgement::kNotWorse);
    // Of percentiles no more is known than their steps tell.
    EXPECT_EQ(judge(worse->changes[3], 0.01), Judgement::kUndecided);
    EXPECT_EQ(judge(changes_between(document_of(100e3, 1), document_of(130e3, 2))->changes[3], 0.1),
              Judgement::kWorse);

    Document foreign = document_of(100e3, 1);
    foreign.progress = {"syscall:write"};
    EXPECT_EQ(changes_between(document_of(100e3, 1), foreign).error().kind, ErrorKind::kInvalid);
}

TEST(Gate, DoubtsWhatIsInvalidOrCutShort) {
    Document cut = document_of(105e3, 2);
    cut.complete = false;
    cut.stopped = "the processes ended";
    cut.host = "beta";
    const auto changes = changes_between(document_of(100e3, 1), cut);
    ASSERT_TRUE(changes);
    EXPECT_THAT(changes->doubts, testing::ElementsAre("b was cut short: the processes ended"));
    EXPECT_THAT(changes->notes, testing::Contains(HasSubstr("different hosts: alpha, beta")));
    EXPECT_EQ(judge(*changes, 0.01), Judgement::kUndecided);
    const std::string junit = speedbump::report::gate_junit(*changes, 0.01, "s");
    EXPECT_THAT(junit, HasSubstr("failures=\"0\""));
    EXPECT_THAT(junit, HasSubstr("skipped=\"4\""));
}

TEST(Gate, JUnitEscapes) {
    Changes changes;
    changes.changes = {change_of(0.05, 0.001)};
    changes.changes[0].progress = "native:exe:f<int>(\"&\x01\xff\")";
    const std::string junit = speedbump::report::gate_junit(changes, 0.01, "speedbump.compare");
    EXPECT_THAT(junit, HasSubstr("f&lt;int&gt;(&quot;&amp;\\x01\\xff&quot;)"));
    EXPECT_THAT(junit, HasSubstr("<failure type=\"worse\""));
    EXPECT_THAT(junit, HasSubstr("is worse by 5.00% (95%: +4.78 to +5.22%); 1% is allowed"));
}

// --- the stopping rule

namespace {

// Blocks of five arms on a service in which the target has the criticality k, whose level changes
// from block to block.
void add_block(std::vector<Observation>& observations, double k, size_t block,
               std::mt19937_64& random) {
    std::normal_distribution<double> normal;
    const double level = 100 + 3 * normal(random);
    std::vector<double> arms = {0, 5, 10, 15, 20};
    std::shuffle(arms.begin(), arms.end(), random);
    for (const double x : arms)
        observations.push_back({block, static_cast<double>(observations.size()), x,
                                level + k * x + 2 * normal(random)});
}

} // namespace

TEST(Anytime, WiderThanOnce) {
    const Estimate once = estimate_of(2, 1, 19);
    const Estimate any = anytime(once, 20);
    EXPECT_GT(any.interval.half_width(), 1.5 * once.interval.half_width());
    EXPECT_LT(any.interval.half_width(), 1.8 * once.interval.half_width());
    EXPECT_GT(any.wide.half_width(), any.interval.half_width());
    EXPECT_EQ(any.value, once.value);
    EXPECT_GT(any.p, once.p);
    // p and interval are two sides of one thing.
    for (const double value : {3.0, 3.3, 3.4, 3.6, 4.5, 9.0}) {
        const Estimate one = anytime(estimate_of(value, 1, 19), 20);
        EXPECT_EQ(one.p < 0.05, !one.interval.contains(0)) << value;
        EXPECT_EQ(one.p < 0.01, !one.wide.contains(0)) << value;
        const Estimate fewer = anytime(estimate_of(value, 1, 6), 20, 6);
        EXPECT_EQ(fewer.p < 0.05, !fewer.interval.contains(0)) << value;
        EXPECT_GT(fewer.interval.half_width(), one.interval.half_width());
    }
    EXPECT_FALSE(std::isfinite(anytime(once, 2).interval.high));
    EXPECT_FALSE(std::isfinite(anytime(Estimate{}, 0).interval.high));
}

TEST(Anytime, LookedAtAfterEveryBlockOfAThousandExperimentsWithoutEffect) {
    if (kSanitized) GTEST_SKIP() << "statistics, not memory";
    constexpr size_t kExperiments = 1000, kBlocks = 20;
    size_t alarms = 0, naive = 0;
    for (uint64_t experiment = 0; experiment < kExperiments; ++experiment) {
        std::mt19937_64 random(experiment);
        std::vector<Observation> observations;
        bool alarm = false, naive_alarm = false;
        for (size_t block = 0; block < kBlocks; ++block) {
            add_block(observations, 0, block, random);
            if (block < 2) continue;
            const LineEstimate line = estimate_line(observations, experiment);
            alarm |= anytime(line.slope, line.blocks).p < 0.05;
            naive_alarm |= line.slope.p < 0.05;
        }
        alarms += alarm;
        naive += naive_alarm;
    }
    std::cout << alarms << " alarms of 1000, " << naive << " without the rule\n";
    EXPECT_LE(alarms, 0.05 * kExperiments);
    EXPECT_GT(naive, 0.10 * kExperiments); // else this would show nothing
}

TEST(Anytime, WhatStopsAtThePrecisionHoldsTheTruth) {
    if (kSanitized) GTEST_SKIP() << "statistics, not memory";
    constexpr size_t kExperiments = 200;
    size_t stopped = 0, covered = 0;
    for (uint64_t experiment = 0; experiment < kExperiments; ++experiment) {
        std::mt19937_64 random(experiment);
        std::vector<Observation> observations;
        for (size_t block = 0; block < 40; ++block) {
            add_block(observations, 0.7, block, random);
            const LineEstimate line = estimate_line(observations, experiment);
            const Estimate any = anytime(line.slope, line.blocks);
            if (any.interval.half_width() > 0.1) continue;
            ++stopped;
            covered += any.interval.contains(0.7);
            break;
        }
    }
    EXPECT_GE(stopped, 0.95 * kExperiments);
    EXPECT_GE(covered, 0.95 * static_cast<double>(stopped));
}

TEST(Anytime, SideBySideToo) {
    if (kSanitized) GTEST_SKIP() << "statistics, not memory";
    Pair pair;
    pair.memory = 0.8;
    constexpr size_t kExperiments = 400;
    size_t alarms = 0;
    for (uint64_t experiment = 0; experiment < kExperiments; ++experiment) {
        const Measured one = measured(pair, experiment);
        bool alarm = false;
        for (size_t slices = 120; slices <= pair.slices; slices += 20)
            alarm |= change_at_any_look(std::span(one.a).first(slices),
                                        std::span(one.b).first(slices), slices / 20)
                         .p < 0.05;
        alarms += alarm;
    }
    EXPECT_LE(alarms, 0.05 * kExperiments);
}
