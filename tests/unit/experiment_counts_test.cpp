// SPDX-License-Identifier: MIT
// What is concluded of few units in a slice: counts are whole numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "experiment/analysis.h"
#include "experiment/plan.h"
#include "util/clock.h"

namespace speedbump::experiment {
namespace {

constexpr double kSlice = 3e9, kSettle = 50e6;

struct Service {
    double units = 10;     // a slice
    double share = 0.2;    // the largest dose, of a unit's time
    double jitter = 0;     // of a unit's time
    bool is_serial = true; // the delayed function is part of each unit; else of no unit
};

// One unit after the other, each with one call in it, whatever slices begin and end meanwhile.
class Running {
  public:
    Running(const Service& service, uint64_t seed)
        : service_(service), period_(kSlice / service.units), random_(seed) {
        begin_unit();
        left_ -= std::min(left_ - 1, uniform() * period_);
    }
    void set_delay(double delay) { delay_ = delay; }
    double uniform() { return std::uniform_real_distribution<double>()(random_); }
    void run(double time) {
        while (time >= left_) {
            time -= left_;
            end_part();
        }
        left_ -= time;
    }
    uint64_t units = 0, calls = 0;
    double injected = 0;

  private:
    enum class Part { kBefore, kDelay, kAfter };
    void begin_unit() {
        const double jitter = service_.jitter * std::normal_distribution<double>()(random_);
        unit_ = period_ * std::max(0.05, 1 + jitter);
        part_ = Part::kBefore;
        left_ = 0.3 * unit_;
    }
    void end_part() {
        if (part_ == Part::kBefore) {
            ++calls;
            if (!service_.is_serial) injected += delay_;
            part_ = Part::kDelay;
            left_ = given_ = service_.is_serial ? delay_ : 0;
        } else if (part_ == Part::kDelay) {
            injected += given_;
            part_ = Part::kAfter;
            left_ = 0.7 * unit_;
        } else {
            ++units;
            begin_unit();
        }
    }

    Service service_;
    double period_;
    std::mt19937_64 random_;
    Part part_ = Part::kBefore;
    double unit_ = 0, left_ = 0, delay_ = 0, given_ = 0;
};

Document measured(const Service& service, size_t blocks, uint64_t seed) {
    Document document;
    document.seed = seed;
    document.settings = {nanoseconds(3'000'000'000), nanoseconds(50'000'000), 0.05, 0.5, 1};
    document.progress = {"native:exe:unit"};
    const auto top = static_cast<int64_t>(service.share * kSlice / service.units);
    document.targets = {{"+exe:f", Role::kTarget, {"f"}, 1, doses_up_to(nanoseconds(top)), {}}};
    Running running(service, seed);
    double now = 0;
    const auto pass = [&](double time) {
        running.run(time);
        now += time;
    };
    for (size_t block = 0; block < blocks; ++block) {
        document.blocks.emplace_back();
        for (const Arm& arm : arms_of_block(document, {0}, false, block)) {
            running.set_delay(ns(arm.delay));
            pass(kSettle * (1 + 0.1 * running.uniform()));
            const Running before = running;
            const double begun = now;
            pass(kSlice * (1 + 0.002 * running.uniform()));
            Slice slice;
            slice.arm = arm;
            slice.start = nanoseconds(static_cast<int64_t>(begun));
            slice.length = nanoseconds(static_cast<int64_t>(now - begun));
            slice.progress = {running.units - before.units};
            slice.progress_time = {slice.length};
            slice.latency.resize(1);
            slice.calls = {running.calls - before.calls};
            if (arm.kind == ArmKind::kDose)
                slice.injected =
                    nanoseconds(static_cast<int64_t>(running.injected - before.injected));
            document.blocks.back().slices.push_back(std::move(slice));
        }
    }
    document.stopped = "blocks";
    document.complete = true;
    return document;
}

struct Tally {
    int runs = 0, matters = 0, hidden = 0, covered = 0;
};

Tally tally(Service service, size_t blocks, int runs) {
    Tally all;
    for (int run = 0; run < runs; ++run) {
        Service one = service;
        one.units *= 1 + 0.02 * run / runs; // whole numbers of units are no exception
        const auto seed = static_cast<uint64_t>(run + 1);
        const Results results = analyse(measured(one, blocks, seed));
        const TargetResult& result = results.progress.at(0).targets.at(0);
        ++all.runs;
        all.matters += result.verdict == Verdict::kMatters;
        all.hidden += result.verdict == Verdict::kHidden;
        all.covered += result.shape.slope.interval.contains(service.is_serial ? 1 : 0);
    }
    return all;
}

TEST(Counts, AreNoReasonToCallWhatMattersHidden) {
    Tally all;
    for (const double units : {5.5, 6.0, 10.0, 20.0, 50.0})
        for (const double share : {0.05, 0.2})
            for (const double jitter : {0.0, 0.1}) {
                const Tally one = tally({units, share, jitter, true}, 20, 20);
                std::printf(
                    "%4.1f units a slice, dose %2.0f %%, jitter %2.0f %%: matters %d, "
                    "hidden %d, covered %d of %d\n",
                    units, share * 100, jitter * 100, one.matters, one.hidden, one.covered,
                    one.runs);
                all.runs += one.runs;
                all.hidden += one.hidden;
                all.covered += one.covered;
                if (share * units >= 1) { // a unit less in a slice
                    EXPECT_GE(one.matters, one.runs * 9 / 10) << units;
                }
            }
    EXPECT_LE(all.hidden, all.runs / 50);
    EXPECT_GE(all.covered, all.runs * 9 / 10);
}

TEST(Counts, MakeNothingMatter) {
    Tally all;
    for (const double units : {5.5, 6.0, 10.0, 20.0})
        for (const double jitter : {0.0, 0.1}) {
            const Tally one = tally({units, 0.2, jitter, false}, 20, 20);
            all.runs += one.runs;
            all.matters += one.matters;
            all.covered += one.covered;
        }
    EXPECT_LE(all.matters, all.runs / 10);
    EXPECT_GE(all.covered, all.runs * 9 / 10);
    // It is found hidden where doses are so large that an effect would have been seen.
    EXPECT_GE(tally({9, 2, 0.1, false}, 10, 20).hidden, 18);
}

// In which a unit is worth a large part of it: the others tell as much as before.
TEST(Counts, OfANearlyStalledSliceTakeNothingFromTheOthers) {
    Document document = measured({100, 0.2, 0.1, true}, 20, 1);
    const auto width = [&document] {
        return analyse(document).progress.at(0).targets.at(0).shape.slope.interval.half_width();
    };
    const double before = width();
    auto& slices = document.blocks[3].slices;
    const auto plain = std::find_if(slices.begin(), slices.end(), [](const Slice& slice) {
        return slice.arm.kind == ArmKind::kProbe;
    });
    ASSERT_NE(plain, slices.end());
    plain->progress = plain->calls = {2};
    EXPECT_LT(width(), 1.5 * before);
}

// A slice that ended without a unit can't be taken into account.
TEST(Counts, OfLessThanAFewUnitsConcludeNothing) {
    for (const double units : {1.2, 3.0})
        for (const bool is_serial : {true, false}) {
            const Document document = measured({units, 1, 0, is_serial}, 40, 1);
            const Results results = analyse(document);
            EXPECT_EQ(results.progress.at(0).targets.at(0).verdict, Verdict::kUncertain);
            ASSERT_EQ(counting_warnings(document).size(), 1u);
            EXPECT_THAT(counting_warnings(document)[0],
                        testing::ContainsRegex("units of native:exe:unit .* longer --slice"));
        }
    EXPECT_TRUE(counting_warnings(measured({9, 1, 0, true}, 4, 1)).empty());
    EXPECT_TRUE(counting_warnings(measured({6, 0.2, 0, true}, 4, 1)).empty());
}

} // namespace
} // namespace speedbump::experiment
