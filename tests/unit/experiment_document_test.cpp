// SPDX-License-Identifier: MIT
#include "experiment/document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "changed_documents.h"
#include "experiment/analysis.h"
#include "experiment/comparison.h"
#include "experiment/plan.h"
#include "experiment/progress_spec.h"
#include "report/experiment.h"

using namespace speedbump::experiment;
using speedbump::ErrorKind;

namespace {

// An experiment on a service that takes 100 us a unit, in which target t has the criticality k[t].
Document measured(const std::vector<double>& k, size_t blocks = 10, double noise = 0.5,
                  uint64_t seed = 1,
                  std::vector<nanoseconds> doses = {nanoseconds(5000), nanoseconds(10000)}) {
    Document document;
    document.version = "0.1.0";
    document.host = "alpha";
    document.engine = "bpf";
    document.seed = seed;
    document.settings = {nanoseconds(200'000'000), nanoseconds(50'000'000), 0.05, 0.5, 1};
    document.progress = {"native:exe:unit"};
    for (size_t target = 0; target < k.size(); ++target) {
        document.targets.push_back(
            {"+exe:f" + std::to_string(target), Role::kTarget, {"f"}, 1, doses, {}});
    }
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    std::vector<size_t> targets;
    for (size_t target = 0; target < k.size(); ++target) targets.push_back(target);
    int64_t start = 0;
    for (size_t block = 0; block < blocks; ++block) {
        document.blocks.emplace_back();
        for (const Arm& arm : arms_of_block(document, targets, true, block)) {
            Slice slice;
            slice.arm = arm;
            slice.start = nanoseconds(start);
            slice.length = nanoseconds(200'000'000);
            double period = 100'000 + 1000 * noise * normal(random);
            if (arm.kind == ArmKind::kOff) period -= 2000;
            if (arm.kind == ArmKind::kDose)
                period += k[arm.target] * static_cast<double>(arm.delay.count());
            const auto units = static_cast<uint64_t>(200e6 / period);
            slice.progress = {units};
            slice.progress_time = {
                nanoseconds(static_cast<int64_t>(period * static_cast<double>(units)))};
            slice.latency.resize(1);
            if (arm.kind != ArmKind::kOff) slice.calls.assign(k.size(), units);
            if (arm.kind == ArmKind::kDose)
                slice.injected = arm.delay * static_cast<int64_t>(units);
            start += 250'000'000;
            document.blocks.back().slices.push_back(std::move(slice));
        }
    }
    document.stopped = "blocks";
    document.complete = true;
    return document;
}

TEST(Rungs, AreKeptAndToldWithTheirIntervals) {
    Document document = measured({1}, 12);
    const Document before = measured({0, 1, 0}, 8);
    Rung rung{before.targets, before.blocks, {1}, {"2 groups were left out"}};
    rung.targets[1].name = "app.views:*";
    rung.targets[0].notes = {"delay 5us was given up: too slow"};
    document.rungs = {rung};
    document.stopped = "blocks";
    const std::string text = to_json(document);
    const auto read = from_json(text, "x");
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(to_json(*read), text);
    const auto json = nlohmann::json::parse(text);
    const auto& first = json["rungs"][0]["results"]["progress"][0]["targets"][0];
    EXPECT_EQ(first["name"], "app.views:*");
    EXPECT_EQ(first["verdict"], "matters");
    EXPECT_NEAR(first["criticality"]["value"].get<double>(), 1, 0.1);
    const std::string table = speedbump::report::experiment_table(*read, analyse(*read), {});
    EXPECT_THAT(table, testing::HasSubstr("bisect, rung 1"));
    EXPECT_THAT(table, testing::ContainsRegex("app.views:\\*.* matters .*taken apart"));
    EXPECT_THAT(table, testing::HasSubstr("2 groups were left out"));
    EXPECT_THAT(table, testing::HasSubstr("+exe:f0: delay 5us was given up"));

    // A rung that goes on with what it has not measured is no rung of this program's.
    auto broken = nlohmann::json::parse(text);
    broken["rungs"][0]["followed"] = {7};
    const auto refused = from_json(broken.dump(), "x");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::kInvalid);
}

TEST(Rungs, AreInThePage) {
    Document document = measured({1}, 12);
    EXPECT_EQ(to_json(document).find("rungs"), std::string::npos);
    document.rungs = {{document.targets, document.blocks, {0}, {}}};
    const std::string page = speedbump::report::experiment_html(document, analyse(document));
    EXPECT_NE(page.find("\"rungs\":["), std::string::npos);
}

} // namespace

TEST(Analysis, RanksWhatMatters) {
    const Document document = measured({0.0, 1.0, 0.4});
    const Results results = analyse(document);
    EXPECT_TRUE(results.valid);
    const auto& targets = results.progress.at(0).targets;
    EXPECT_EQ(targets[0].target, 1u);
    EXPECT_EQ(targets[1].target, 2u);
    EXPECT_EQ(targets[2].target, 0u);
    EXPECT_NEAR(targets[0].shape.slope.value, 1, 0.06);
    EXPECT_NEAR(targets[1].shape.slope.value, 0.4, 0.06);
    EXPECT_EQ(targets[0].verdict, Verdict::kMatters);
    EXPECT_EQ(targets[2].verdict, Verdict::kHidden);
    ASSERT_TRUE(targets[0].gain);
    EXPECT_NEAR(targets[0].gain->value, 1000, 60); // 1 us less per call, one call a unit
    EXPECT_FALSE(targets[2].gain);
    ASSERT_TRUE(results.progress[0].looking);
    EXPECT_NEAR(results.progress[0].looking->value, 2000, 700);
    EXPECT_EQ(targets[0].points.size(), 3u);
}

// Other load that takes the CPUs for slices at a time looks like a slack of what is serial.
TEST(Analysis, OtherLoadIsNoSlack) {
    const std::vector<nanoseconds> doses = {nanoseconds(5000), nanoseconds(10000),
                                            nanoseconds(20000), nanoseconds(40000)};
    constexpr int kExperiments = 400;
    int bent = 0, hidden = 0;
    for (int seed = 1; seed <= kExperiments; ++seed) {
        Document document = measured({1.0}, 6, 20, static_cast<uint64_t>(seed), doses);
        std::mt19937_64 random(static_cast<uint64_t>(seed));
        std::exponential_distribution<double> stall;
        for (Block& block : document.blocks)
            for (Slice& slice : block.slices)
                if (random() % 3 == 0)
                    slice.progress_time[0] += nanoseconds(static_cast<int64_t>(
                        static_cast<double>(slice.progress_time[0].count()) * stall(random)));
        const Results results = analyse(document);
        const auto& result = results.progress.at(0).targets.at(0);
        bent += result.shape.shape == Shape::kHinge;
        hidden += result.verdict == Verdict::kHidden;
    }
    EXPECT_GE(bent, kExperiments / 20); // else nothing is shown
    EXPECT_LE(hidden, kExperiments / 50);
}

TEST(Analysis, AShamThatMattersMakesItInvalid) {
    Document document = measured({1.0});
    for (Block& block : document.blocks)
        for (Slice& slice : block.slices)
            if (slice.arm.kind == ArmKind::kSham) slice.progress_time[0] *= 2;
    const Results results = analyse(document);
    EXPECT_FALSE(results.valid);
    ASSERT_EQ(results.invalid_because.size(), 1u);
    EXPECT_NE(results.invalid_because[0].find("sham"), std::string::npos);
}

TEST(Analysis, AShamThatIsFarFromZeroByChanceDoesNot) {
    size_t by_chance = 0, invalid = 0;
    for (double longer = 1; longer < 1.2; longer += 0.0005) {
        Document document = measured({1.0});
        for (Block& block : document.blocks)
            for (Slice& slice : block.slices)
                if (slice.arm.kind == ArmKind::kSham)
                    slice.progress_time[0] = nanoseconds(static_cast<int64_t>(
                        static_cast<double>(slice.progress_time[0].count()) * longer));
        const Results results = analyse(document);
        const auto& sham = results.progress.at(0).sham;
        ASSERT_TRUE(sham);
        EXPECT_EQ(results.valid, sham->p >= 1e-4 || sham->wide.contains(0)) << sham->p;
        by_chance += results.valid && !sham->wide.contains(0);
        invalid += !results.valid;
    }
    EXPECT_GT(by_chance, 0u);
    EXPECT_GT(invalid, 0u);
}

TEST(Analysis, APositiveControlMustBeNearOne) {
    Document document = measured({1.0, 0.5});
    document.targets[0].role = Role::kPositive;
    EXPECT_TRUE(analyse(document).valid);
    EXPECT_EQ(analyse(document).progress[0].targets.back().target, 0u); // controls come last
    document.targets[1].role = Role::kPositive;
    EXPECT_FALSE(analyse(document).valid);
}

TEST(Analysis, NothingMeasuredIsNoResult) {
    Document document = measured({1.0}, 0);
    const Results results = analyse(document);
    EXPECT_FALSE(results.valid);
    EXPECT_EQ(results.progress[0].targets[0].verdict, Verdict::kUnknown);
    const std::string table = speedbump::report::experiment_table(document, results, {});
    EXPECT_NE(table.find("INVALID"), std::string::npos);
}

TEST(Analysis, PrecisionEndsAnExperiment) {
    EXPECT_TRUE(is_precise(measured({1.0, 0.0}, 40, 0.2), 0.05));
    EXPECT_FALSE(is_precise(measured({1.0, 0.0}, 4, 3), 0.05));
}

TEST(Analysis, TellsWhoseDelaysMadeThreadsWaitForACpu) {
    Document document = measured({1.0, 1.0});
    for (Block& block : document.blocks)
        for (Slice& slice : block.slices) {
            slice.waited = slice.length / 50; // other load
            if (slice.arm.kind == ArmKind::kDose && slice.arm.target == 1)
                slice.waited += slice.injected * 3 / 10;
        }
    const Results results = analyse(document);
    for (const TargetResult& target : results.progress[0].targets)
        EXPECT_NEAR(target.waited, target.target == 1 ? 0.3 : 0.0, 1e-9);
    const auto warnings = contention_warnings(document);
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_THAT(warnings[0], testing::StartsWith("+exe:f1: "));
    EXPECT_THAT(warnings[0], testing::HasSubstr("waited 0.30 ms for one"));

    for (Block& block : document.blocks)
        for (Slice& slice : block.slices) slice.waited = slice.length / 4;
    EXPECT_THAT(contention_warnings(document),
                testing::ElementsAre(testing::HasSubstr("waited 0.25 s for a CPU in each second")));
}

TEST(Analysis, ComparesTwo) {
    const auto same = compare(measured({1.0, 0.3}, 12, 0.5, 1), measured({1.0, 0.3}, 12, 0.5, 2));
    ASSERT_TRUE(same);
    for (const ComparedTarget& target : same->targets) EXPECT_GT(target.p, 0.05);
    const auto other = compare(measured({1.0, 0.3}, 12, 0.5, 1), measured({1.0, 0.8}, 12, 0.5, 2));
    ASSERT_TRUE(other);
    for (const ComparedTarget& target : other->targets)
        EXPECT_EQ(target.p < 0.05, target.name == "+exe:f1") << target.name;
    Document foreign = measured({1.0});
    foreign.progress = {"syscall:write"};
    EXPECT_EQ(compare(measured({1.0}), foreign).error().kind, ErrorKind::kInvalid);
}

// A service whose target is hidden by `slack` and then serial.
Document with_slack(double slack, uint64_t seed, double noise = 0.3) {
    std::vector<nanoseconds> doses;
    for (int dose = 1; dose <= 8; ++dose) doses.emplace_back(5000 * dose);
    Document document = measured({0.0}, 20, noise, seed, doses);
    for (Block& block : document.blocks)
        for (Slice& slice : block.slices) {
            const double each = std::max(0.0, static_cast<double>(slice.arm.delay.count()) - slack);
            slice.progress_time[0] +=
                nanoseconds(static_cast<int64_t>(static_cast<double>(slice.progress[0]) * each));
            slice.length = slice.progress_time[0];
        }
    return document;
}

TEST(Analysis, ComparesWhatTheFirstNsDo) {
    const Document serial = with_slack(0, 1), hidden = with_slack(20'000, 2);
    ASSERT_EQ(analyse(serial).progress[0].targets[0].verdict, Verdict::kMatters);
    ASSERT_EQ(analyse(hidden).progress[0].targets[0].verdict, Verdict::kHidden);
    ASSERT_EQ(analyse(hidden).progress[0].targets[0].shape.shape, Shape::kHinge);
    const auto gone = compare(serial, hidden);
    ASSERT_TRUE(gone);
    const ComparedTarget& target = gone->targets.at(0);
    EXPECT_NEAR(target.a.value, 1, 0.1);
    EXPECT_EQ(target.b.value, 0);
    EXPECT_LT(target.difference.interval.high, -0.8);
    EXPECT_GT(target.difference.interval.low, -1.2);
    // No wider and no narrower than what is known of the one that has an uncertainty.
    const Estimate known = analyse(serial).progress[0].targets[0].shape.slope;
    EXPECT_NEAR(target.difference.interval.half_width(), known.interval.half_width(), 1e-9);
    // Both beyond their slacks.
    const auto same = compare(hidden, with_slack(20'000, 3));
    ASSERT_TRUE(same);
    EXPECT_NEAR(same->targets.at(0).a.value, 1, 0.2);
    EXPECT_GT(same->targets.at(0).p, 0.001);
}

// A slack that may be none leaves open what the first ns do: no difference is claimed.
TEST(Analysis, ComparesNothingWithASlackThatIsUncertain) {
    const Document serial = with_slack(0, 1);
    size_t uncertain = 0;
    for (uint64_t seed = 1; seed < 60; ++seed) {
        Document unclear = with_slack(6'000, seed, 3);
        unclear.blocks.resize(4);
        const TargetResult result = analyse(unclear).progress[0].targets[0];
        if (result.shape.shape != Shape::kHinge || result.verdict == Verdict::kHidden) continue;
        ++uncertain;
        const auto comparison = compare(serial, unclear);
        ASSERT_TRUE(comparison);
        EXPECT_EQ(comparison->targets.at(0).p, 1);
        EXPECT_TRUE(std::isinf(comparison->targets[0].difference.interval.half_width()));
        const std::string table = speedbump::report::comparison_table(*comparison, {});
        EXPECT_THAT(table, testing::HasSubstr("not known"));
        EXPECT_THAT(table, testing::Not(testing::HasSubstr("inf")));
    }
    EXPECT_GT(uncertain, 0u);
}

TEST(Document, SurvivesJson) {
    Document document = measured({1.0, 0.0}, 3);
    document.blocks[0].slices[0].latency[0] =
        Latency{nanoseconds(1), nanoseconds(2), nanoseconds(3)};
    document.warnings = {"odd \xff bytes"};
    document.targets[1].notes = {"a note"};
    const std::string text = to_json(document);
    const auto read = from_json(text, "x.json");
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(to_json(*read), text);
    EXPECT_EQ(read->blocks[0].slices[0].latency[0]->p99, nanoseconds(3));
}

TEST(Document, RefusesWhatIsDamaged) {
    const std::string text = to_json(measured({1.0}, 2));
    for (size_t length = 0; length < text.size(); length += 97)
        EXPECT_EQ(from_json(text.substr(0, length), "x").error().kind, ErrorKind::kInvalid);
    const auto damage = [&](auto change) {
        auto json = nlohmann::json::parse(text);
        change(json);
        return from_json(json.dump(), "x");
    };
    EXPECT_TRUE(damage([](auto&) {}));
    EXPECT_FALSE(damage([](auto& json) { json["schema"] = "speedbump/experiment/2"; }));
    EXPECT_FALSE(damage([](auto& json) { json["blocks"][0]["slices"][0]["arm"] = "other"; }));
    EXPECT_FALSE(damage([](auto& json) { json["blocks"][0]["slices"][0]["progress"] = {1, 2}; }));
    EXPECT_FALSE(damage([](auto& json) { json["targets"] = nlohmann::json::array(); }));
    EXPECT_FALSE(damage([](auto& json) { json["seed"] = "seven"; }));
    EXPECT_FALSE(damage([](auto& json) {
        json["blocks"] = nlohmann::json::array();
        json["progress"] = nlohmann::json::array();
    }));
}

TEST(Document, WhatIsTakenCanBeShown) {
    for (const size_t blocks : {0u, 2u}) // without blocks little else has to fit a changed value
        EXPECT_GT(taken_when_changed(nlohmann::json::parse(to_json(measured({1.0, 0.0}, blocks)))),
                  30u);
}

TEST(Document, EachSliceButThoseWithoutProbesHasItsCalls) {
    const auto whole = nlohmann::json::parse(to_json(measured({1.0, 0.0}, 2)));
    size_t without = 0;
    for (size_t slice = 0; slice < whole["blocks"][0]["slices"].size(); ++slice) {
        auto json = whole;
        auto& one = json["blocks"][0]["slices"][slice];
        one.erase("calls");
        const bool is_taken = from_json(json.dump(), "x").has_value();
        EXPECT_EQ(is_taken, one["arm"] == "off") << one["arm"];
        without += is_taken;
    }
    EXPECT_GT(without, 0u);
}

TEST(Document, NumbersAreWhatTheySeem) {
    const auto whole = nlohmann::json::parse(to_json(measured({1.0}, 2)));
    for (const char* place : {"/blocks/0/slices/0/length_ns", "/blocks/0/slices/0/progress/0",
                              "/blocks/0/slices/0/progress_ns/0", "/settings/slice_ns",
                              "/targets/0/doses_ns/0", "/targets/0/function_count"})
        for (const char* other : {"-1", "1e3", "1.5", "1e300", "9223372036854775807",
                                  "9223372036854775808", "18446744073709551615"}) {
            auto json = whole;
            json[nlohmann::json::json_pointer(place)] = nlohmann::json::parse(other);
            const auto document = from_json(json.dump(), "x");
            ASSERT_FALSE(document) << place << " " << other;
            EXPECT_THAT(document.error().message, testing::HasSubstr("is not a whole number from"));
        }
}

TEST(Document, MergesHosts) {
    Document other = measured({1.0}, 5, 0.5, 2);
    other.host = "beta";
    other.started_unix_ns = 1;
    other.engine = "inprocess";
    for (Block& block : other.blocks) // a host of half the speed
        for (Slice& slice : block.slices) slice.progress_time[0] += slice.length;
    const auto merged = merge({measured({1.0}, 5), other});
    ASSERT_TRUE(merged);
    EXPECT_EQ(merged->blocks.size(), 10u);
    EXPECT_EQ(merged->host, "alpha, beta");
    EXPECT_EQ(merged->engine, "bpf, inprocess");
    const auto json = nlohmann::json::parse(to_json(*merged));
    EXPECT_EQ(json["engine"], merged->engine);
    EXPECT_THAT(speedbump::report::experiment_table(*merged, analyse(*merged), {}),
                testing::HasSubstr("engine bpf, inprocess; ended by"));
    EXPECT_FALSE(merge({measured({1.0}), measured({1.0, 0.5})}));
}

TEST(Document, CountsNoExperimentTwice) {
    std::vector<Document> all;
    for (uint64_t seed = 1; seed <= 3; ++seed) {
        all.push_back(measured({1.0}, 3, 0.5, seed));
        all.back().started_unix_ns = static_cast<int64_t>(seed);
    }
    ASSERT_TRUE(merge(all));
    const auto both = merge({all[0], all[1]});
    ASSERT_TRUE(both);
    const std::vector<std::vector<Document>> twices = {
        {all[0], all[0]}, {all[0], all[1], all[0]}, {*both, all[0]},
        {*both, all[1]},  {all[1], *both},          {*both, *merge({all[2], all[1]})}};
    for (const auto& twice : twices) {
        const auto merged = merge(twice);
        ASSERT_FALSE(merged);
        EXPECT_THAT(merged.error().message, testing::HasSubstr("is there twice"));
    }
    EXPECT_TRUE(merge({*both, all[2]}));
    // The same seed at another time is another experiment.
    all[1].seed = all[0].seed;
    EXPECT_TRUE(merge({all[0], all[1]}));
}

TEST(Plan, EachBlockHasAnOrderOfItsOwnThatTheSeedGives) {
    const Document document = measured({1.0, 0.0}, 0);
    const auto order = [&](size_t block) {
        std::vector<std::pair<int, int64_t>> names;
        for (const Arm& arm : arms_of_block(document, {0, 1}, true, block))
            names.emplace_back(static_cast<int>(arm.kind) * 10 + static_cast<int>(arm.target),
                               arm.delay.count());
        return names;
    };
    EXPECT_EQ(order(3), order(3));
    std::set<std::vector<std::pair<int, int64_t>>> orders;
    for (size_t block = 0; block < 20; ++block) orders.insert(order(block));
    EXPECT_GT(orders.size(), 15u);
    EXPECT_EQ(order(0).size(), 7u); // off, probe, sham, two doses of two targets
}

TEST(Plan, DosesAreEvenAndShort) {
    const std::vector<nanoseconds> expected = {nanoseconds(31000), nanoseconds(62000),
                                               nanoseconds(93000), nanoseconds(120000)};
    EXPECT_EQ(doses_up_to(nanoseconds(123456)), expected);
    EXPECT_EQ(doses_up_to(nanoseconds(1)).size(), 1u);
}

TEST(Progress, SpecsAreParsed) {
    const auto native = parse_progress("native:exe:ns::f(int)");
    ASSERT_TRUE(native);
    EXPECT_EQ(native->first, "exe");
    EXPECT_EQ(native->second, "ns::f(int)");
    const auto usdt = parse_progress("usdt:/bin/x:provider:name");
    ASSERT_TRUE(usdt);
    EXPECT_EQ(usdt->third, "name");
    const auto http = parse_progress("http://127.0.0.1:80/m:x");
    EXPECT_FALSE(http); // the kind is missing: "//127..." is no URL
    const auto page = parse_progress("http:http://127.0.0.1:8080/m:total:([0-9]+)");
    ASSERT_TRUE(page);
    EXPECT_EQ(page->first, "http://127.0.0.1:8080/m");
    EXPECT_EQ(page->second, "total:([0-9]+)");
    const auto plain = parse_progress("http:http://host/m:x");
    ASSERT_TRUE(plain);
    EXPECT_EQ(plain->first, "http://host/m");
    EXPECT_EQ(parse_progress("command:echo 1: 2")->first, "echo 1: 2");
    for (const char* wrong : {"", "native", "native:", "native:x", "usdt:a:b", "other:x", "file:x"})
        EXPECT_EQ(parse_progress(wrong).error().kind, ErrorKind::kUsage) << wrong;
}

TEST(Progress, LatencyBucketsAreContiguous) {
    uint64_t last = 0;
    for (uint32_t bucket = 1; bucket < 976; ++bucket) {
        const uint64_t value = latency_of_bucket(bucket);
        EXPECT_GT(value, last);
        if (last > 16) {
            EXPECT_LT(static_cast<double>(value) / static_cast<double>(last), 1.1);
        }
        last = value;
    }
}
