// SPDX-License-Identifier: MIT
#include "experiment/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

using namespace speedbump::experiment;

namespace {

// A service with a known answer, measured with noise, drift and now and then a disturbance.
struct Simulation {
    size_t blocks = 12;
    std::vector<double> doses = {5, 10, 15, 20};
    double k = 1;
    double slack = 0;
    double noise = 2;
    double drift = 0.05;
    double disturbed = 0.03;
};

std::vector<Observation> simulate(const Simulation& service, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    std::uniform_real_distribution<double> uniform;
    std::vector<Observation> result;
    double time = 0;
    for (size_t block = 0; block < service.blocks; ++block) {
        std::vector<double> arms = service.doses;
        arms.push_back(0);
        std::shuffle(arms.begin(), arms.end(), random);
        const double level = 100 + 3 * normal(random);
        for (const double arm : arms) {
            const double x = arm * (1 + 0.01 * normal(random));
            double y = level + service.k * std::max(0.0, x - service.slack) + service.drift * time;
            y += service.noise * normal(random);
            if (uniform(random) < service.disturbed) y += 20 * service.noise * uniform(random);
            result.push_back({block, time, x, y});
            time += 1;
        }
    }
    return result;
}

nlohmann::json golden() {
    std::ifstream file(SPEEDBUMP_SOURCE_DIR "/tests/unit/golden/experiment_statistics.json");
    return nlohmann::json::parse(file);
}

constexpr size_t kRuns = 400;

// Many thousand fits say nothing new to a sanitizer, and take it minutes.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

} // namespace

TEST(Statistics, RobustLineAsScipyFindsIt) {
    const auto document = golden();
    for (const auto& wanted : document["lines"]) {
        std::vector<Observation> observations;
        for (const auto& row : wanted["rows"])
            observations.push_back({row[0], row[1], row[2], row[3]});
        const Line line = fit_line(observations);
        EXPECT_NEAR(line.slope, wanted["slope"], 1e-4);
        EXPECT_NEAR(line.drift, wanted["drift"], 1e-4);
        EXPECT_NEAR(line.scale, wanted["scale"], 1e-3);
        EXPECT_NEAR(line.base, wanted["base"], 1e-2);
    }
}

TEST(Statistics, HolmAndWelchAsScipyFindsThem) {
    const auto document = golden();
    const std::vector<double> p = document["holm"]["p"];
    const std::vector<double> corrected = holm(p);
    for (size_t i = 0; i < p.size(); ++i)
        EXPECT_NEAR(corrected[i], document["holm"]["corrected"][i], 1e-12);
    for (const auto& wanted : document["welch"]) {
        Estimate a, b;
        a.value = wanted["a"];
        a.error = wanted["error_a"];
        b.value = wanted["b"];
        b.error = wanted["error_b"];
        const Estimate found = difference(a, wanted["blocks_a"], b, wanted["blocks_b"]);
        EXPECT_NEAR(found.interval.low, wanted["low"], 1e-9);
        EXPECT_NEAR(found.interval.high, wanted["high"], 1e-9);
        EXPECT_NEAR(found.p, wanted["p"], 1e-9);
    }
}

TEST(Statistics, TheSameSeedGivesTheSameInterval) {
    const auto observations = simulate({}, 3);
    EXPECT_EQ(estimate_line(observations, 5).slope.error,
              estimate_line(observations, 5).slope.error);
    EXPECT_NE(estimate_line(observations, 5).slope.error,
              estimate_line(observations, 6).slope.error);
}

TEST(Statistics, IntervalCoversAsPromised) {
    if (kSanitized) GTEST_SKIP() << "statistics, not memory";
    Simulation quiet, disturbed, drifting;
    quiet.disturbed = 0;
    disturbed.disturbed = 0.15;
    drifting.drift = 1;
    for (Simulation service : {quiet, disturbed, drifting}) {
        for (const size_t blocks : {6u, 12u, 40u}) {
            service.blocks = blocks;
            size_t covered = 0;
            for (size_t run = 0; run < kRuns; ++run)
                covered +=
                    estimate_line(simulate(service, run), run).slope.interval.contains(service.k);
            const double share = static_cast<double>(covered) / kRuns;
            std::cout << "coverage disturbed=" << service.disturbed << " drift=" << service.drift
                      << " blocks=" << blocks << ": " << share << "\n";
            EXPECT_GE(share, 0.92);
            EXPECT_LE(share, 0.98);
        }
    }
}

TEST(Statistics, ShamRaisesFewAlarms) {
    Simulation sham; // one arm that pretends to a dose
    sham.doses = {20};
    sham.k = 0;
    size_t alarms = 0;
    for (size_t run = 0; run < kRuns; ++run)
        alarms += !estimate_line(simulate(sham, run), run).slope.wide.contains(0);
    std::cout << "false alarms: " << static_cast<double>(alarms) / kRuns << "\n";
    EXPECT_LE(static_cast<double>(alarms) / kRuns, 0.05);
}

TEST(Statistics, ShapesAreTold) {
    if (kSanitized) GTEST_SKIP() << "statistics, not memory";
    const auto share_of = [](const Simulation& service, Shape shape) {
        size_t count = 0;
        for (size_t run = 0; run < 100; ++run)
            count += fit_shape(simulate(service, run), run).shape == shape;
        std::cout << to_string(shape) << " k=" << service.k << " slack=" << service.slack << ": "
                  << count << " %\n";
        return count;
    };
    Simulation service;
    EXPECT_GE(share_of(service, Shape::kLinear), 93u);
    service.k = 0;
    EXPECT_GE(share_of(service, Shape::kFlat), 90u);
    service.k = 1;
    service.slack = 9;
    service.noise = 1;
    service.blocks = 20;
    EXPECT_GE(share_of(service, Shape::kHinge), 95u);
}

TEST(Statistics, SlackAndSlopeOfAHinge) {
    if (kSanitized) GTEST_SKIP() << "statistics, not memory";
    Simulation service;
    service.slack = 9;
    service.k = 1.5;
    service.noise = 1;
    service.blocks = 20;
    size_t slack_covered = 0, slope_covered = 0, hinges = 0;
    for (size_t run = 0; run < 200; ++run) {
        const ShapeEstimate found = fit_shape(simulate(service, run), run);
        if (found.shape != Shape::kHinge) continue;
        ++hinges;
        slack_covered += found.slack.interval.contains(service.slack);
        slope_covered += found.slope.interval.contains(service.k);
        EXPECT_NEAR(found.base, 102.4, 6);
    }
    std::cout << "hinges " << hinges << ", slack covered " << slack_covered << ", slope covered "
              << slope_covered << " of 200\n";
    EXPECT_GE(hinges, 195u);
    EXPECT_GE(slack_covered, hinges * 90 / 100);
    EXPECT_GE(slope_covered, hinges * 90 / 100);
}

TEST(Statistics, DisturbedSlicesMoveTheAnswerLittle) {
    Simulation service;
    service.disturbed = 0.15;
    double worst = 0;
    for (size_t run = 0; run < 50; ++run)
        worst = std::max(worst, std::abs(fit_line(simulate(service, run)).slope - 1));
    EXPECT_LT(worst, 0.25);
}

TEST(Statistics, TooLittleIsToldAsSuch) {
    std::vector<Observation> one_block = {{0, 0, 0, 100}, {0, 1, 10, 110}};
    const LineEstimate estimate = estimate_line(one_block, 1);
    EXPECT_NEAR(estimate.slope.value, 1, 0.11);
    EXPECT_TRUE(std::isinf(estimate.slope.interval.high));
    EXPECT_EQ(estimate_line({}, 1).blocks, 0u);
    // no dose was ever given
    std::vector<Observation> still = {{0, 0, 0, 100}, {0, 1, 0, 101}, {1, 2, 0, 99}, {1, 3, 0, 98}};
    EXPECT_EQ(fit_shape(still, 1).slope.value, 0);
    EXPECT_EQ(fit_shape(still, 1).shape, Shape::kFlat);
}

TEST(Statistics, BlocksStillNeeded) {
    EXPECT_EQ(blocks_needed(10, 0.04, 0.02), 40u);
    EXPECT_EQ(blocks_needed(10, 0.01, 0.02), 3u);
    EXPECT_EQ(blocks_needed(1, std::numeric_limits<double>::infinity(), 0.02), 0u);
}
