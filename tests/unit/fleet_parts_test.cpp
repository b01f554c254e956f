// SPDX-License-Identifier: MIT
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "experiment/analysis.h"
#include "experiment/comparison.h"
#include "experiment/document.h"
#include "experiment/gate.h"
#include "fleet/clock_offset.h"
#include "fleet/combine.h"
#include "fleet/words.h"

namespace speedbump::fleet {
namespace {

using namespace std::chrono_literals;
using Kind = Combination::Kind;
using Words = std::vector<std::string>;

TEST(FleetWords, AreAsAShellSplitsThem) {
    EXPECT_EQ(*split_words("ssh host"), (Words{"ssh", "host"}));
    EXPECT_EQ(*split_words("  ssh\t-o 'A B'  h"), (Words{"ssh", "-o", "A B", "h"}));
    EXPECT_EQ(*split_words(R"(a "b \" c" d\ e '' f"g"h)"),
              (Words{"a", "b \" c", "d e", "", "fgh"}));
    EXPECT_EQ(*split_words(R"("a\b" '\')"), (Words{"a\\b", "\\"}));
    EXPECT_EQ(*split_words("a $b *"), (Words{"a", "$b", "*"}));
}

TEST(FleetWords, ThatAreNoCommandAreRefused) {
    for (const char* text : {"", "  ", "ssh 'h", "ssh \"h", "ssh h\\", "ssh h; rm", "a|b", "a\nb"})
        EXPECT_FALSE(split_words(text)) << text;
}

TEST(FleetClock, TheShortestTripTells) {
    ClockOffset clock;
    EXPECT_EQ(clock.best(), std::nullopt);
    // 50 ms ahead; the way back takes longer in the first, both in the last are short.
    clock.add(1'000'000, 51'100'000, 9'000'000);
    clock.add(20'000'000, 70'050'000, 20'100'000);
    clock.add(30'000'000, 80'900'000, 31'000'000);
    ASSERT_TRUE(clock.best());
    EXPECT_EQ(clock.best()->ahead, 50'000'000);
    EXPECT_GE(clock.best()->error, 50'000u);
    EXPECT_LE(clock.best()->error, 50'300u); // it is 11 ms old
}

TEST(FleetClock, IsBehindAsWellAndForgets) {
    ClockOffset clock;
    clock.add(100, 50, 102); // of another time: it is forgotten
    for (uint64_t i = 1; i <= ClockOffset::kKept; ++i)
        clock.add(1'000'000 * i, 1'000'000 * i - 900, 1'000'000 * i + 200);
    EXPECT_EQ(clock.best()->ahead, -1000);
    EXPECT_EQ(clock.count(), ClockOffset::kKept);
}

TEST(FleetClock, AJumpIsToldAndTheTimeBeforeForgotten) {
    ClockOffset clock;
    for (uint64_t i = 1; i <= 100; ++i)
        EXPECT_EQ(clock.add(1'000'000 * i, 1'000'000 * i + 5'000, 1'000'000 * i + 200),
                  std::nullopt);
    // Slow, but of the same clock.
    EXPECT_EQ(clock.add(200'000'000, 201'500'000, 202'000'000), std::nullopt);
    EXPECT_NEAR(static_cast<double>(clock.best()->ahead), 4'900, 1);
    const auto jump = clock.add(300'000'000, 500'050'000, 300'100'000);
    ASSERT_TRUE(jump);
    EXPECT_NEAR(static_cast<double>(*jump), 200e6 - 4'900, 1);
    EXPECT_EQ(clock.best()->ahead, 200'000'000);
    EXPECT_EQ(clock.count(), 1u);
}

TEST(FleetClock, WhatCannotBeIsLeftOut) {
    ClockOffset clock;
    clock.add(100, 50, 99);
    clock.add(100, UINT64_MAX, 101);
    EXPECT_EQ(clock.best(), std::nullopt);
}

std::optional<SliceReading> reading(uint64_t units, uint64_t calls = 0, uint64_t injected = 0,
                                    uint64_t since_ns = 0) {
    SliceReading one;
    one.points = {{units, since_ns}};
    one.targets = {{calls, injected > 0 ? calls : 0, injected}};
    return one;
}

Plan plan_of(Kind kind, bool each = false, size_t hosts = 2) {
    Plan plan;
    plan.slice = 10ms;
    plan.functions = 1;
    plan.each = each;
    plan.progress = {{kind, 0}};
    plan.doses.assign(plan.targets(hosts), 1us);
    return plan;
}

TEST(FleetCombiner, SumsUnitsAndTakesTheMeanOfWhatAllHave) {
    Combiner all(plan_of(Kind::kSum), 2);
    EXPECT_TRUE(all.add({{{3, true}}, {reading(5, 2, 2000), reading(7, 4, 4000)}}));
    EXPECT_TRUE(all.add({{{3, false}}, {reading(6), std::nullopt}}));
    EXPECT_FALSE(all.add({{{3, false}}, {std::nullopt, std::nullopt}}));
    const experiment::Sliced& sliced = all.sliced();
    EXPECT_EQ(sliced.units[0], (std::vector<uint64_t>{12, 6}));
    ASSERT_EQ(sliced.targets.size(), 1u);
    EXPECT_EQ(sliced.targets[0].injected_ns, (std::vector<uint64_t>{3000, 0}));
    EXPECT_EQ(sliced.targets[0].delays, (std::vector<uint64_t>{6, 0}));
    EXPECT_EQ(sliced.targets[0].calls, 6u);
    EXPECT_EQ(sliced.targets[0].hosts, 1.5);
    std::vector<experiment::FleetHost> hosts(2);
    all.fill(hosts);
    EXPECT_EQ(hosts[1].told, (std::vector<bool>{true, false}));
    EXPECT_EQ(hosts[0].units[0], (std::vector<uint64_t>{5, 6}));
    EXPECT_EQ(hosts[1].targets[0].injected_ns, (std::vector<uint64_t>{4000, 0}));
}

TEST(FleetCombiner, TellsHostsApartWhereEachIsSlowed) {
    Combiner each(plan_of(Kind::kSum, true), 2);
    EXPECT_TRUE(each.add({{{0, false}, {5, true}}, {reading(5, 2), reading(7, 4, 4000)}}));
    ASSERT_EQ(each.sliced().targets.size(), 2u);
    EXPECT_EQ(each.sliced().targets[0].injected_ns[0], 0u);
    EXPECT_EQ(each.sliced().targets[1].injected_ns[0], 4000u);
    EXPECT_EQ(each.sliced().targets[1].hosts, 1);
    EXPECT_EQ(each.sliced().targets[0].steps[0].level, 0);
}

TEST(FleetCombiner, TheSlowestIsTheOneThatHasDoneTheLeast) {
    Combiner slowest(plan_of(Kind::kMin), 2);
    for (const auto& [a, b] : std::vector<std::pair<uint64_t, uint64_t>>{{3, 1}, {1, 3}, {2, 1}})
        EXPECT_TRUE(slowest.add({{{1, false}}, {reading(a), reading(b)}}));
    EXPECT_EQ(slowest.sliced().units[0], (std::vector<uint64_t>{1, 3, 1}));
    // Without the slowest the other one's lead is no progress.
    EXPECT_TRUE(slowest.add({{{1, false}}, {reading(2), std::nullopt}}));
    EXPECT_EQ(slowest.sliced().units[0].back(), 2u);
    EXPECT_TRUE(slowest.add({{{1, false}}, {reading(2), reading(1)}}));
    EXPECT_EQ(slowest.sliced().units[0].back(), 1u);
}

// By when its units were done, as a share of the slice; 10 ms each.
std::optional<SliceReading> reading_at(const std::vector<double>& shares) {
    double since_ns = 0;
    for (const double share : shares) since_ns += share * 10e6;
    return reading(shares.size(), 0, 0, static_cast<uint64_t>(since_ns));
}

TEST(FleetCombiner, TheSlowestTellsWhenItsUnitsWereDone) {
    Combiner slowest(plan_of(Kind::kMin), 2);
    const auto add = [&](const std::vector<double>& a, const std::vector<double>& b) {
        EXPECT_TRUE(slowest.add({{{1, false}}, {reading_at(a), reading_at(b)}}));
        const experiment::Sliced& sliced = slowest.sliced();
        return static_cast<double>(sliced.since_ns[0].back()) / 10e6 /
               static_cast<double>(std::max<uint64_t>(sliced.units[0].back(), 1));
    };
    EXPECT_NEAR(add({0.1, 0.3}, {0.2, 0.6}), 0.4, 1e-3); // both have done 2: the later ones
    EXPECT_NEAR(add({0.5}, {}), 0, 1e-3);                // 3 and 2
    // 4 and 4: the one behind has done both, and the other one only its last.
    EXPECT_NEAR(add({0.9}, {0.01, 0.9}), 0.455, 1e-3);
    EXPECT_NEAR(add({0.2}, {}), 0, 1e-3); // 5 and 4
    // 6 and 7: the one behind has overtaken the other one, and two of its three count.
    EXPECT_NEAR(add({0.95}, {0.1, 0.2, 0.6}), 0.3, 1e-3);
    EXPECT_EQ(slowest.sliced().units[0], (std::vector<uint64_t>{2, 0, 2, 0, 2}));
}

// What a host tells is only bounded.
TEST(FleetCombiner, NoUnitIsDoneAfterItsSlice) {
    Combiner slowest(plan_of(Kind::kMin), 1);
    EXPECT_TRUE(slowest.add({{{1, false}}, {reading(3, 0, 0, 1ull << 50)}}));
    EXPECT_EQ(slowest.sliced().since_ns[0].back(), 30'000'000u);
    EXPECT_TRUE(slowest.add({{{1, false}}, {reading(1ull << 60, 0, 0, ~0ull)}}));
    EXPECT_EQ(slowest.sliced().since_ns[0].back(), 1ull << 62);
}

TEST(FleetCombiner, ProgressOfOneHostNeedsThatHost) {
    Combiner one(plan_of(Kind::kAt), 2);
    EXPECT_FALSE(one.add({{{1, false}}, {std::nullopt, reading(1)}}));
    EXPECT_TRUE(one.add({{{1, false}}, {reading(4), reading(1)}}));
    EXPECT_EQ(one.sliced().units[0], (std::vector<uint64_t>{4}));
}

// Two hosts, each serial in the function; the second one has another function's time besides. A
// delay of both costs what one of them has, a delay of one half of it.
experiment::Document fleet_of_two(bool each) {
    experiment::Document document;
    document.seed = 5;
    document.progress = {"native:exe:f"};
    document.settings.slice = 10ms;
    document.settings.max_cpu = 1;
    const size_t targets = each ? 2 : 1;
    for (size_t target = 0; target < targets; ++target) {
        experiment::Target& one = document.targets.emplace_back();
        one.name = each ? "+exe:f @ h" + std::to_string(target + 1) : "+exe:f";
        if (each) one.host = target;
        one.function_count = 1;
        one.doses = {20us};
    }
    Plan plan = plan_of(Kind::kSum, each);
    Combiner combiner(plan, 2);
    double left[2] = {0, 0};
    for (size_t slice = 0; slice < 4096; ++slice) {
        FleetSlice one;
        one.steps.resize(targets);
        const size_t stage = slice / experiment::kStageSlices;
        for (size_t host = 0; host < 2; ++host) {
            const size_t target = each ? host : 0;
            Step step{0, false};
            if (!each || stage % 2 == host)
                step = experiment::stage_of(document.seed, target,
                                            each ? stage / 2 : stage)[slice % 32];
            one.steps[target] = each && stage % 2 != host ? Step{0, false} : step;
            const double delay = step.on ? 20'000 * share_of(each, step.level) : 0;
            left[host] += 10e6 / (100'000 + delay);
            const auto units = static_cast<uint64_t>(left[host]);
            left[host] -= static_cast<double>(units);
            one.hosts.push_back(
                reading(units, units, static_cast<uint64_t>(static_cast<double>(units) * delay)));
        }
        EXPECT_TRUE(combiner.add(one));
    }
    document.sliced = combiner.sliced();
    experiment::Fleet& fleet = document.fleet.emplace();
    fleet.each = each;
    fleet.progress = {"sum"};
    fleet.hosts.resize(2);
    fleet.hosts[0].name = "h1";
    fleet.hosts[1].name = "h2";
    combiner.fill(fleet.hosts);
    document.stopped = "time";
    document.complete = true;
    return document;
}

TEST(FleetCombiner, HostsThatAreSlowedTogetherCostWhatOneOfThemHas) {
    const experiment::Results results = analyse(fleet_of_two(false));
    const auto& target = results.progress[0].targets[0];
    EXPECT_NEAR(target.shape.slope.value, 1, 0.03);
    EXPECT_NEAR(results.progress[0].period, 50'000, 500);
    ASSERT_EQ(results.hosts.size(), 2u);
    for (const experiment::HostResult& host : results.hosts) {
        EXPECT_NEAR(host.period, 100'000, 1000);
        EXPECT_NEAR(host.targets[0].shape.slope.value, 1, 0.03);
    }
}

TEST(FleetCombiner, OneOfTwoThatWorkApartCostsHalf) {
    const experiment::Results results = analyse(fleet_of_two(true));
    ASSERT_EQ(results.progress[0].targets.size(), 2u);
    for (const auto& target : results.progress[0].targets)
        EXPECT_NEAR(target.shape.slope.value, 0.5, 0.03);
    ASSERT_EQ(results.hosts.size(), 2u);
    EXPECT_EQ(results.hosts[1].targets[0].target, 1u);
}

// Ranks that wait for each other in each step, one of them slowed at a time; times in us.
experiment::Document ranks_that_wait(const std::vector<double>& times, double dose,
                                     size_t slices = 4'800, unsigned seed = 7) {
    experiment::Document document;
    document.seed = seed;
    document.progress = {"native:exe:step_done"};
    document.settings.slice = 50ms;
    document.settings.max_cpu = 1;
    document.settings.max_slowdown = 4;
    Plan plan = plan_of(Kind::kMin, true, times.size());
    plan.slice = 50ms;
    experiment::Fleet& fleet = document.fleet.emplace();
    fleet.each = true;
    fleet.progress = {"min"};
    for (size_t rank = 0; rank < times.size(); ++rank) {
        experiment::Target& one = document.targets.emplace_back();
        one.name = "+exe:work @ h" + std::to_string(rank + 1);
        one.host = rank;
        one.function_count = 1;
        one.doses = {std::chrono::nanoseconds(static_cast<int64_t>(dose * 1e3))};
        plan.doses[rank] = one.doses[0];
        fleet.hosts.emplace_back().name = "h" + std::to_string(rank + 1);
    }
    Combiner combiner(plan, times.size());
    std::minstd_rand random(seed - 4);
    std::uniform_real_distribution<double> late(0, 100); // by which each sleep is
    double done = 0;                                     // us, when the step in progress is
    for (size_t slice = 0; slice < slices; ++slice) {
        const size_t stage = slice / experiment::kStageSlices, turn = stage % times.size();
        FleetSlice one;
        one.steps.resize(times.size(), Step{0, false});
        one.steps[turn] = experiment::stage_of(
            document.seed, turn, stage / times.size())[slice % experiment::kStageSlices];
        const Step step = one.steps[turn];
        const double delay = step.on ? dose * share_of(true, step.level) : 0;
        uint64_t steps = 0;
        double since = 0; // us
        for (; done < 50e3 * static_cast<double>(slice + 1); ++steps) {
            double longest = 0;
            for (size_t rank = 0; rank < times.size(); ++rank)
                longest =
                    std::max(longest, times[rank] + late(random) + (rank == turn ? delay : 0));
            done += longest;
            // The last one is done in the next slice, and counts for this one.
            since += std::min(done - 50e3 * static_cast<double>(slice), 50e3);
        }
        for (size_t rank = 0; rank < times.size(); ++rank)
            one.hosts.push_back(reading(
                steps, steps,
                rank == turn ? static_cast<uint64_t>(static_cast<double>(steps) * delay * 1e3) : 0,
                static_cast<uint64_t>(since * 1e3)));
        EXPECT_TRUE(combiner.add(one));
    }
    document.sliced = combiner.sliced();
    combiner.fill(fleet.hosts);
    document.stopped = "time";
    document.complete = true;
    return document;
}

// Of some slacks only the full dose is beyond half of itself.
TEST(FleetCombiner, TheSlackOfRanksIsToldFromTheSteepnessBeyondIt) {
    const std::vector<double> times = {4000, 2800, 2600, 2400, 3000, 2200, 2700, 2000};
    const experiment::Results results = analyse(ranks_that_wait(times, 3200));
    const auto& targets = results.progress[0].targets;
    ASSERT_EQ(targets.size(), times.size());
    for (const auto& target : targets) {
        const double truth = times[0] - times[target.target];
        if (truth == 0) {
            EXPECT_EQ(target.shape.shape, experiment::Shape::kLinear);
            EXPECT_NEAR(target.shape.slope.value, 1, 0.03);
            continue;
        }
        EXPECT_EQ(target.shape.shape, experiment::Shape::kHinge) << truth;
        EXPECT_NEAR(target.shape.slack.value / truth / 1e3, 1, 0.05) << truth;
    }
}

// Some seven stages of each rank, of which each level is one or none.
TEST(FleetCombiner, OfFewSlicesNoRankWithASlackIsSaidToMatter) {
    const std::vector<double> times = {8100, 5100, 4100, 6100};
    size_t reached = 0, all = 0;
    for (unsigned seed = 100; seed < 140; ++seed) {
        const experiment::Results results = analyse(ranks_that_wait(times, 6400, 840, seed));
        for (const auto& target : results.progress[0].targets) {
            if (target.blocks == 0 || times[target.target] == times[0]) continue;
            EXPECT_NE(target.verdict, experiment::Verdict::kMatters) << seed;
            EXPECT_GE(target.points.size(), 4u) << seed; // no delay, and at least three levels
            ++all;
            reached += target.shape.shape == experiment::Shape::kHinge ||
                       target.shape.slope.interval.contains(0);
        }
    }
    EXPECT_GE(all, 90u);
    EXPECT_GE(reached, all * 95 / 100);
}

TEST(FleetDocument, IsReadAsItWasWritten) {
    for (const bool each : {false, true}) {
        const experiment::Document document = fleet_of_two(each);
        const std::string text = experiment::to_json(document);
        const auto read = experiment::from_json(text, "fleet.json");
        ASSERT_TRUE(read) << read.error().message;
        EXPECT_EQ(experiment::to_json(*read), text);
        EXPECT_FALSE(experiment::merge({document, document}));
    }
}

TEST(FleetDocument, IsComparedByHowTheHostsMakeProgress) {
    const experiment::Document sum = fleet_of_two(false);
    experiment::Document other = fleet_of_two(false);
    other.fleet->hosts[1].name = "h3";
    const auto same = experiment::compare(sum, other);
    ASSERT_TRUE(same);
    EXPECT_EQ(same->progress, "sum:native:exe:f");
    EXPECT_EQ(same->targets.size(), 1u);
    const auto changes = experiment::changes_between(sum, other);
    ASSERT_TRUE(changes);
    EXPECT_EQ(changes->changes.at(0).progress, "sum:native:exe:f");
    EXPECT_THAT(changes->notes, testing::Contains(testing::HasSubstr("hosts: h1 + h2, h1 + h3")));

    other.fleet->progress = {"min"};
    experiment::Document single = sum;
    single.fleet.reset();
    for (const experiment::Document& unlike : {other, single}) {
        EXPECT_EQ(experiment::compare(sum, unlike).error().kind, ErrorKind::kInvalid);
        EXPECT_EQ(experiment::changes_between(sum, unlike).error().kind, ErrorKind::kInvalid);
    }
}

TEST(FleetDocument, WhatItCannotHaveWrittenIsRefused) {
    const std::string text = experiment::to_json(fleet_of_two(true));
    const auto refused = [&](const std::string& from, const std::string& to) {
        std::string changed = text;
        const size_t at = changed.rfind(from);
        ASSERT_NE(at, std::string::npos) << from;
        changed.replace(at, from.size(), to);
        EXPECT_FALSE(experiment::from_json(changed, "fleet.json")) << from << " -> " << to;
    };
    refused("\"told\":\"1", "\"told\":\"");
    refused("\"where\":\"each\"", "\"where\":\"some\"");
    refused("\"where\":\"each\"", "\"where\":\"all\"");
    std::string changed = text;
    changed.replace(changed.find("\"host\":1"), 8, "\"host\":2");
    EXPECT_FALSE(experiment::from_json(changed, "fleet.json"));
}

} // namespace
} // namespace speedbump::fleet
