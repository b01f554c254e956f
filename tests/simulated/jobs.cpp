// SPDX-License-Identifier: MIT
#include "jobs.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "experiment/model/parts.h"
#include "experiment/model/sequence.h"
#include "fleet/combine.h"

namespace speedbump::simulated {

namespace {

constexpr double kUneven = 0.01; // of a step, how far apart two ranks of the same work are at most
constexpr size_t kTruthSteps = 4000;

using Random = std::mt19937_64;

double between(Random& random, double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
}

double by_ratio(Random& random, double low, double high) {
    return low * std::pow(high / low, between(random, 0, 1));
}

} // namespace

Job::Job(uint64_t seed) : seed_(seed) {
    Random random(seed ^ 0x7a9c);
    const auto ranks = static_cast<size_t>(by_ratio(random, 2, 17));
    const double longest = by_ratio(random, 5e6, 50e6);
    work_.push_back(longest);
    for (size_t rank = 1; rank < ranks; ++rank) {
        const bool is_even = between(random, 0, 1) < 0.2; // as slow as the slowest
        const double slack = is_even ? kUneven * between(random, 0, 1) : between(random, 0, 0.6);
        work_.push_back(longest * (1 - slack));
    }
    std::shuffle(work_.begin(), work_.end(), random);
    jitter_ = longest * by_ratio(random, 0.001, 0.03);
    late_ = by_ratio(random, 0.001, 0.02);
    late_ns_ = by_ratio(random, 0.1e6, 3e6);
    slow_ = by_ratio(random, 0.002, 0.05);
    fast_ = by_ratio(random, 0.002, 0.02);
    steals_ = by_ratio(random, 0.1, 5);
    stolen_ns_ = by_ratio(random, 0.1e6, 20e6);
    step_ = mean_step(0, 0);
}

Job::Job(std::vector<double> work, double jitter, uint64_t seed)
    : work_(std::move(work)), jitter_(jitter), seed_(seed) {
    step_ = mean_step(0, 0);
}

// The same chance for each delay.
double Job::mean_step(size_t rank, double delay) const {
    Random random(seed_ ^ 0x57e9);
    std::normal_distribution<double> normal;
    double sum = 0;
    for (size_t step = 0; step < kTruthSteps; ++step) {
        double longest = 0;
        for (size_t one = 0; one < work_.size(); ++one) {
            double took = work_[one] + jitter_ * normal(random) + (one == rank ? delay : 0);
            if (between(random, 0, 1) < late_) took += late_ns_;
            longest = std::max(longest, took);
        }
        sum += longest;
    }
    return sum / kTruthSteps;
}

double Job::effect(size_t rank, double delay) const {
    return (mean_step(rank, delay) - step_) / delay;
}

double Job::slack(size_t rank) const {
    return step_ - work_[rank] - late_ * late_ns_;
}

experiment::SlicedRun Job::measure(uint64_t seed, double slice_ns, size_t slices,
                                   const std::vector<double>& doses) const {
    experiment::SlicedRun run;
    run.slice_ns = slice_ns;
    run.units.assign(slices, 0);
    std::vector<uint64_t> since_ns(slices);
    run.targets.resize(ranks());
    for (size_t rank = 0; rank < ranks(); ++rank) {
        experiment::TargetSlices& one = run.targets[rank];
        one.injected.assign(slices, 0);
        one.delays.assign(slices, 0);
        for (size_t stage = 0; one.steps.size() < slices; ++stage)
            for (const experiment::Step& step : experiment::stage_of(seed, rank, stage / ranks()))
                one.steps.push_back(stage % ranks() == rank ? step : experiment::Step{0, false});
        one.steps.resize(slices);
    }
    Random random(seed ^ 0x3a51);
    std::normal_distribution<double> normal;
    const double steps_a_second = 1e9 / slice_ns;
    std::exponential_distribution<double> exponential;
    double slow = 0, speed = 1, now = 0;
    for (size_t slice = 0, at = SIZE_MAX; (slice = static_cast<size_t>(now / slice_ns)) < slices;) {
        if (at != slice) {
            at = slice;
            slow += slow_ * std::sqrt(2 / steps_a_second) * normal(random) - slow / steps_a_second;
            speed = std::exp(slow + fast_ * normal(random));
            if (between(random, 0, 1) < steals_ / steps_a_second)
                now += stolen_ns_ * exponential(random);
        }
        double longest = 0;
        for (size_t rank = 0; rank < ranks(); ++rank) {
            experiment::TargetSlices& mine = run.targets[rank];
            double took = speed * (work_[rank] + jitter_ * normal(random));
            if (between(random, 0, 1) < late_) took += late_ns_;
            if (mine.steps[slice].on) {
                const double delay = doses[rank] * fleet::share_of(true, mine.steps[slice].level);
                mine.injected[slice] += delay;
                mine.delays[slice] += 1;
                took += delay;
            }
            longest = std::max(longest, took);
        }
        now += longest;
        const auto done = static_cast<size_t>(now / slice_ns);
        if (done >= slices) continue;
        ++run.units[done];
        since_ns[done] += static_cast<uint64_t>(now - static_cast<double>(done) * slice_ns);
    }
    experiment::count_parts(run, since_ns);
    return run;
}

} // namespace speedbump::simulated
