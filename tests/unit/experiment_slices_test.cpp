// SPDX-License-Identifier: MIT
#include "experiment/slices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "experiment/history.h"
#include "report/experiment.h"

using namespace speedbump::experiment;
using speedbump::ErrorKind;
using testing::HasSubstr;

namespace {

constexpr nanoseconds kSlice{5'000'000};
constexpr double kPeriodNs = 50e3;
constexpr double kDoseNs = 5e3;

// Of 20 s of a service in which target t is called once a unit and has the criticality k[t].
// `late`: in so many slices later.
Document measured(const std::vector<double>& k, size_t slices = 4000, uint64_t seed = 1,
                  double noise = 0.01, size_t late = 0) {
    Document document;
    document.version = "0.1.0";
    document.host = "alpha";
    document.seed = seed;
    document.settings = {kSlice, nanoseconds(50'000'000), 0, 0.5, 1};
    document.progress = {"native:exe:unit"};
    document.stopped = "time";
    document.complete = true;
    Sliced& sliced = document.sliced.emplace();
    sliced.slice = kSlice;
    sliced.units.resize(1);
    for (size_t target = 0; target < k.size(); ++target) {
        document.targets.push_back({"+exe:f" + std::to_string(target),
                                    Role::kTarget,
                                    {"f"},
                                    1,
                                    {nanoseconds(static_cast<int64_t>(kDoseNs))},
                                    {}});
        SlicedTarget& one = sliced.targets.emplace_back();
        one.dose = document.targets.back().doses[0];
        for (size_t stage = 0; one.steps.size() < slices; ++stage)
            for (const Step& step : stage_of(seed, target, stage)) one.steps.push_back(step);
        one.steps.resize(slices);
    }
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    for (size_t slice = 0; slice < slices; ++slice) {
        const auto delay = [&](size_t target, size_t before = 0) {
            if (before > slice) return 0.0;
            const Step& step = sliced.targets[target].steps[slice - before];
            return step.on ? kDoseNs * share_of(step.level) : 0;
        };
        double unit = kPeriodNs * (1 + noise * normal(random));
        for (size_t target = 0; target < k.size(); ++target)
            unit += k[target] * delay(target, late);
        const auto units = static_cast<uint64_t>(static_cast<double>(kSlice.count()) / unit +
                                                 std::uniform_real_distribution<>()(random));
        sliced.units[0].push_back(units);
        for (size_t target = 0; target < k.size(); ++target) {
            SlicedTarget& one = sliced.targets[target];
            one.calls += units;
            one.delays.push_back(delay(target) > 0 ? units : 0);
            one.injected_ns.push_back(
                static_cast<uint64_t>(delay(target) * static_cast<double>(units)));
        }
    }
    return document;
}

const TargetResult& result_of(const Results& results, size_t target) {
    for (const TargetResult& result : results.progress[0].targets)
        if (result.target == target) return result;
    throw std::runtime_error("no such target");
}

} // namespace

TEST(Slices, TellAllTargetsAtOnce) {
    const Document document = measured({1, 0, 0.5});
    const Results results = analyse(document);
    EXPECT_TRUE(results.valid) << testing::PrintToString(results.invalid_because);
    const ProgressResult& progress = results.progress[0];
    EXPECT_NEAR(progress.period, kPeriodNs, kPeriodNs / 100);
    ASSERT_TRUE(progress.sham);
    EXPECT_TRUE(progress.sham->wide.contains(0));
    EXPECT_EQ(progress.slices, 4000u);
    EXPECT_EQ(progress.arrives_within, 2u); // the slice of the dose, and the one for what is left
    EXPECT_TRUE(progress.pairs.empty());
    const double truth[] = {1, 0, 0.5};
    for (size_t target = 0; target < 3; ++target) {
        const TargetResult& result = result_of(results, target);
        EXPECT_TRUE(result.shape.slope.wide.contains(truth[target])) << target;
        EXPECT_LT(result.shape.slope.interval.half_width(), 0.1) << target;
        EXPECT_NEAR(result.calls_per_unit, 1, 1e-9);
        EXPECT_GT(result.blocks, 0u);
        EXPECT_EQ(result.verdict, target == 1 ? Verdict::kHidden : Verdict::kMatters) << target;
        EXPECT_TRUE(target == 1 || result.gain.has_value()) << target;
    }
    EXPECT_EQ(progress.targets[0].target, 0u); // ranked
    EXPECT_TRUE(is_precise(document, 0.2));
    EXPECT_FALSE(is_precise(document, 0.0001));
}

TEST(Slices, IntervalsThatAreLookedAtWhileItRunsAreWider) {
    Document document = measured({1});
    const double once = result_of(analyse(document), 0).shape.slope.interval.half_width();
    document.stopped = "precision";
    EXPECT_GT(result_of(analyse(document), 0).shape.slope.interval.half_width(), 1.2 * once);
}

TEST(Slices, OfAnEffectThatComesLaterThanItIsFollowedCallNothingHidden) {
    for (const size_t late : {0, 5, 11, 14, 15, 20, 40, 80}) {
        const Document document = measured({1, 0}, 8000, 1, 0.01, late);
        const Results results = analyse(document);
        const ProgressResult& progress = results.progress[0];
        const bool is_followed = late < Response::kMaxLags - 1;
        EXPECT_EQ(progress.arrives_later, !is_followed) << late;
        EXPECT_EQ(look_at_slices(document, 0.01).is_late, late > 11) << late;
        EXPECT_EQ(result_of(results, 1).verdict,
                  is_followed ? Verdict::kHidden : Verdict::kUncertain)
            << late;
        EXPECT_NE(result_of(results, 0).verdict, Verdict::kHidden) << late;
        const std::string table = speedbump::report::experiment_table(document, results, {});
        EXPECT_EQ(table.find("or later, which is not counted") == std::string::npos, is_followed);
        if (is_followed) {
            EXPECT_EQ(progress.arrives_within, late + 2);
        }
    }
}

// Of units that take longer than a slice, whose parts are told some slices later: these are not
// slices by which effects are late.
TEST(Slices, AreNotCalledLateForTheLeadOfParts) {
    constexpr size_t kSlices = 8000;
    constexpr double kUnit = 8e6, kDose = 2e6;
    for (const size_t late : {0, 8, 9, 11}) {
        Document document = measured({1}, kSlices);
        Sliced& sliced = *document.sliced;
        SlicedTarget& target = sliced.targets[0];
        target.dose = document.targets[0].doses[0] = nanoseconds(static_cast<int64_t>(kDose));
        target.delays.assign(kSlices, 0);
        target.injected_ns.assign(kSlices, 0);
        sliced.units[0].assign(kSlices, 0);
        sliced.since_ns = sliced.units;
        const auto length = static_cast<double>(kSlice.count());
        std::mt19937_64 random(late);
        std::normal_distribution<double> normal;
        for (double time = 0;;) {
            const auto begun = static_cast<size_t>(time / length);
            const auto dose_at = [&](size_t slice) {
                const Step& step = target.steps[slice];
                return step.on ? kDose * share_of(step.level) : 0;
            };
            time += kUnit * (1 + 0.01 * normal(random));
            if (begun >= late) time += dose_at(begun - late);
            const auto slice = static_cast<size_t>(time / length);
            if (slice >= kSlices) break;
            ++sliced.units[0][slice];
            sliced.since_ns[0][slice] +=
                static_cast<uint64_t>(time - static_cast<double>(slice) * length);
            target.delays[begun] += dose_at(begun) > 0;
            target.injected_ns[begun] += static_cast<uint64_t>(dose_at(begun));
        }
        EXPECT_EQ(look_at_slices(document, 0.01).is_late, late > 9) << late;
        EXPECT_EQ(is_late_after(document, kSlices / 2), late > 9) << late;
    }
}

// One look may take noise for one: it needs two, of different slices.
TEST(Slices, AreNotCalledLateByChance) {
    size_t suspected = 0, confirmed = 0;
    for (uint64_t seed = 1; seed <= 1000; ++seed) {
        const bool first = look_at_slices(measured({1, 1}, 600, seed, 0.05), 0.01).is_late;
        suspected += first;
        confirmed += first && is_late_after(measured({1, 1}, 1200, seed, 0.05), 600);
    }
    EXPECT_GT(suspected, 0u); // else nothing was asked
    EXPECT_LT(suspected, 60u);
    EXPECT_LE(confirmed, 4u);
    const Document late = measured({1, 1}, 2400, 1, 0.01, 40);
    EXPECT_TRUE(is_late_after(late, 1200));
    EXPECT_FALSE(is_late_after(late, 2000)); // too few to tell
}

// Few slices may look like a slack by chance, and then an interval reaches to none.
TEST(Slices, AreNotPreciseWhereTheIntervalReachesToNone) {
    constexpr double kPrecision = 0.25, kNoise = 0.05;
    size_t reaching = 0;
    for (uint64_t seed = 1; seed <= 40; ++seed) {
        Document document = measured({1}, 1000, seed, kNoise);
        document.stopped = "precision";
        const auto interval = result_of(analyse(document), 0).shape.slope.interval;
        if (interval.low > 0 || interval.high > 1 + 2 * kPrecision) continue;
        ++reaching;
        EXPECT_FALSE(is_precise(document, kPrecision)) << seed << ": " << interval.low;
    }
    EXPECT_GT(reaching, 0u); // else the slices are too many to tell
}

TEST(Slices, TooFewSayNothing) {
    const Document document = measured({1}, 300);
    const Results results = analyse(document);
    EXPECT_EQ(result_of(results, 0).verdict, Verdict::kUnknown);
    EXPECT_FALSE(results.valid);
    EXPECT_FALSE(is_precise(document, 10));
    const Document none = measured({1}, 0);
    EXPECT_EQ(result_of(analyse(none), 0).verdict, Verdict::kUnknown);
    ASSERT_FALSE(results.invalid_because.empty());
    EXPECT_EQ(results.invalid_because[0],
              "300 slices of 5.00 ms tell nothing of native:exe:unit yet: it takes 640 of them, "
              "3.20 s without what comes before");
}

// What was measured besides, such as what looking costs, does not say that something is known.
TEST(Slices, OfLateEffectsMoreAreNeeded) {
    Document document = measured({1, 0}, 1500, 1, 0.01, 10);
    Slice looked;
    looked.length = nanoseconds(1'000'000);
    looked.progress = {100};
    looked.progress_time = {nanoseconds(1'000'000)};
    looked.latency = {std::nullopt};
    looked.calls = {0, 0};
    document.blocks.push_back({false, {looked}});
    const Results results = analyse(document);
    EXPECT_EQ(results.progress[0].slices, 1u);
    ASSERT_FALSE(results.invalid_because.empty());
    EXPECT_EQ(results.invalid_because[0],
              "1500 slices of 5.00 ms tell nothing of native:exe:unit yet; effects seem to come up "
              "to 11 slices late: it takes 1920 of them, 9.60 s without what comes before");
}

TEST(Slices, ATargetWithoutADoseIsUnknown) {
    Document document = measured({1, 0});
    document.sliced->targets[1].dose = nanoseconds(0);
    const Results results = analyse(document);
    EXPECT_EQ(result_of(results, 0).verdict, Verdict::kMatters);
    EXPECT_EQ(result_of(results, 1).verdict, Verdict::kUnknown);
}

TEST(Slices, AFailedControlMakesThemInvalid) {
    Document document = measured({1, 0});
    document.targets[1].role = Role::kPositive;
    EXPECT_THAT(analyse(document).invalid_because,
                testing::ElementsAre(HasSubstr("the positive control +exe:f1")));
}

TEST(Slices, AreReadAsTheyWereWritten) {
    Document document = measured({1, 0}, 1000);
    std::vector<uint64_t>& since_ns = document.sliced->since_ns.emplace_back();
    for (const uint64_t units : document.sliced->units[0]) since_ns.push_back(units * 1000);
    const std::string text = to_json(document);
    const auto read = from_json(text, "r.json");
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(to_json(*read), text);
    EXPECT_EQ(read->sliced->targets[1].calls, document.sliced->targets[1].calls);
    EXPECT_EQ(read->sliced->since_ns, document.sliced->since_ns);
}

TEST(Slices, WhatIsNotWholeIsRefused) {
    const auto refusal = [](const std::string& pointer, const nlohmann::json& value) {
        nlohmann::json json = nlohmann::json::parse(to_json(measured({1}, 700)));
        json[nlohmann::json::json_pointer(pointer)] = value;
        const auto read = from_json(json.dump(), "r.json");
        return read ? std::string("none") : read.error().message;
    };
    EXPECT_THAT(refusal("/sliced/slice_ns", 0), HasSubstr("slices without a length"));
    EXPECT_THAT(refusal("/sliced/slice_ns", 2'000'000'000), HasSubstr("slice_ns is not"));
    EXPECT_THAT(refusal("/sliced/waited_ns", INT64_MAX), HasSubstr("waited_ns is not"));
    EXPECT_THAT(refusal("/sliced/targets/0/injected_ns/0", -1), HasSubstr("injected_ns is not"));
    EXPECT_THAT(refusal("/sliced/units/0/0", 1e300), HasSubstr("units is not"));
    for (const double chance : {0.0, 1.0, -0.5})
        EXPECT_THAT(refusal("/sliced/chance", chance), HasSubstr("between 0 and 1"));
    EXPECT_THAT(refusal("/sliced/units", nlohmann::json::array()), HasSubstr("progress points"));
    EXPECT_THAT(refusal("/sliced/units/0", {1, 2}), HasSubstr("another length"));
    EXPECT_THAT(refusal("/sliced/units_since_ns", nlohmann::json::array()),
                HasSubstr("progress points"));
    EXPECT_THAT(refusal("/sliced/units_since_ns", {{1, 2}}), HasSubstr("another length"));
    EXPECT_THAT(refusal("/sliced/targets/0/steps", "aAb"), HasSubstr("another length"));
    EXPECT_THAT(refusal("/sliced/targets/0/steps", "f"), HasSubstr("no step 'f'"));
    EXPECT_THAT(refusal("/sliced/targets/0/delays", {1}), HasSubstr("another length"));
    EXPECT_THAT(refusal("/sliced/targets", nlohmann::json::array()),
                HasSubstr("another number of targets"));
    EXPECT_THAT(refusal("/sliced/targets/0/dose_ns", -1), HasSubstr("dose_ns is not"));
}

// Ten and a half units in each, like clockwork: that it is ten and eleven in turn is no noise.
// Units of 2.4 slices are told some slices later, with what was done to them: that is not late.
TEST(Slices, UnitsThatAreMovedLaterAreNotLate) {
    constexpr size_t kSlices = 700;
    Document document = measured({1}, kSlices);
    Sliced& sliced = *document.sliced;
    SlicedTarget& target = sliced.targets[0];
    const auto length = static_cast<double>(sliced.slice.count());
    sliced.units[0].assign(kSlices, 0);
    sliced.since_ns = {std::vector<uint64_t>(kSlices, 0)};
    target.dose = sliced.slice / 2;
    target.injected_ns.assign(kSlices, 0);
    target.delays.assign(kSlices, 0);
    for (double now = 0; now < length * kSlices;) {
        const auto begun = static_cast<size_t>(now / length);
        const Step& step = target.steps[begun];
        const double dose = step.on ? length / 2 * share_of(step.level) : 0;
        target.injected_ns[begun] += static_cast<uint64_t>(dose);
        target.delays[begun] += dose > 0 ? 1 : 0;
        now += 2.4 * length + dose;
        const auto slice = static_cast<size_t>(now / length);
        if (slice >= kSlices) break;
        ++sliced.units[0][slice];
        sliced.since_ns[0][slice] +=
            static_cast<uint64_t>(now - static_cast<double>(slice) * length);
    }
    const Results results = analyse(document);
    ASSERT_FALSE(results.invalid_because.empty());
    EXPECT_THAT(results.invalid_because[0], HasSubstr("tell nothing of native:exe:unit yet: it"));
}

TEST(Slices, HaveTheNoiseOfUnitsInParts) {
    Document document = measured({}, 400);
    Sliced& sliced = *document.sliced;
    sliced.units[0].assign(400, 0);
    std::vector<uint64_t> since_ns(400);
    const double period = static_cast<double>(sliced.slice.count()) / 10.5;
    for (size_t unit = 1; unit < 4195; ++unit) {
        const auto at = static_cast<uint64_t>(period * static_cast<double>(unit));
        const auto length = static_cast<uint64_t>(sliced.slice.count());
        ++sliced.units[0][at / length];
        since_ns[at / length] += at % length;
    }
    const double by_number = noise_by_length(document).at(0).error;
    sliced.since_ns = {since_ns};
    const double by_parts = noise_by_length(document).at(0).error;
    EXPECT_GT(by_number, 0.003);
    EXPECT_LT(by_parts, by_number / 5);
}

TEST(Slices, OfTwoHostsAreOneRun) {
    Document a = measured({1, 0}, 2000, 1), b = measured({1, 0}, 2000, 2);
    b.host = "beta";
    b.started_unix_ns = 1;
    const auto merged = merge({a, b});
    ASSERT_TRUE(merged) << merged.error().message;
    EXPECT_EQ(merged->sliced->slices(), 4000u);
    const double one = result_of(analyse(a), 0).shape.slope.error;
    const double both = result_of(analyse(*merged), 0).shape.slope.error;
    EXPECT_LT(both, one);
    EXPECT_TRUE(result_of(analyse(*merged), 0).shape.slope.wide.contains(1));
    b.sliced->slice *= 2;
    EXPECT_EQ(merge({a, b}).error().kind, ErrorKind::kInvalid);
    b.sliced->slice = a.sliced->slice;
    b.sliced->chance = 0.1; // what was drawn means another thing there
    EXPECT_THAT(merge({a, b}).error().message, HasSubstr("another chance"));
    b.sliced.reset();
    EXPECT_THAT(merge({a, b}).error().message, HasSubstr("short slices"));
}

TEST(Slices, AreComparedLikeOthers) {
    const auto same = compare(measured({1}, 4000, 1), measured({1}, 4000, 2));
    ASSERT_TRUE(same);
    EXPECT_GT(same->targets[0].p, 0.001);
    const auto other = compare(measured({1}, 4000, 1), measured({0.3}, 4000, 2));
    ASSERT_TRUE(other);
    EXPECT_LT(other->targets[0].p, 0.001);
    EXPECT_NEAR(other->targets[0].difference.value, -0.7, 0.2);
}

TEST(Slices, AreShownInTheTable) {
    Document document = measured({1, 0});
    Results results = analyse(document);
    results.progress[0].pairs = {{0, 1}};
    const std::string table = speedbump::report::experiment_table(document, results, {});
    EXPECT_THAT(table, HasSubstr("4000 slices of 5.00 ms, all targets at once; seed 1"));
    EXPECT_THAT(table, HasSubstr("an effect arrives within 10.0 ms"));
    EXPECT_THAT(table, HasSubstr("+exe:f0 and +exe:f1: a delay of one changes"));
}
