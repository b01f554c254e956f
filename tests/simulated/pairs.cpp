// SPDX-License-Identifier: MIT
// How often `experiment --ab` is right, over pairs of services drawn at random.
//
//   pairs [COUNT [SEED]]   the seed is drawn anew unless given; status 1: not as promised
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "experiment/pair.h"
#include "promises.h"
#include "util/numbers.h"

using namespace speedbump;
using experiment::Judgement;
using experiment::kSideA;
using experiment::kSideB;
using simulated::holds;
using simulated::share;

namespace {

constexpr double kSliceNs = 50e6;
constexpr size_t kSlices = 1200; // a minute
constexpr double kLimit = 0.01;
constexpr double kLargestChange = 0.05;

// Noise that wanders with a memory of so many slices.
class Wander {
  public:
    Wander(double size, double memory, std::mt19937_64& random)
        : size_(size), keep_(std::exp(-1 / memory)), value_(normal_(random)) {}
    double next(std::mt19937_64& random) {
        value_ = keep_ * value_ + std::sqrt(1 - keep_ * keep_) * normal_(random);
        return size_ * value_;
    }

  private:
    std::normal_distribution<double> normal_;
    double size_, keep_, value_;
};

double log_uniform(double low, double high, std::mt19937_64& random) {
    return std::exp(std::uniform_real_distribution(std::log(low), std::log(high))(random));
}

// A host whose speed wanders and which is taken away for moments, from both and from either; two
// services with a unit of 20 us to 5 ms of random length, and noise of their own.
experiment::PairDocument draw_pair(double change, std::mt19937_64& random) {
    const double unit = log_uniform(20e3, 5e6, random);
    const double spread = log_uniform(0.05, 0.7, random); // of a unit's time, as a share
    Wander host(log_uniform(0.01, 0.2, random), log_uniform(1, 200, random), random);
    Wander own[2] = {
        Wander(log_uniform(0.002, 0.02, random), log_uniform(0.5, 10, random), random),
        Wander(log_uniform(0.002, 0.02, random), log_uniform(0.5, 10, random), random)};
    const double stolen_often = log_uniform(0.001, 0.05, random); // a slice
    const double stolen_each = log_uniform(0.01, 0.3, random);    // of a slice
    std::uniform_real_distribution<double> uniform;
    std::exponential_distribution<double> exponential;
    std::normal_distribution<double> normal;
    experiment::PairDocument document;
    document.progress = {"native:exe:unit"};
    document.stopped = "time";
    document.complete = true;
    const auto stolen = [&] {
        return uniform(random) < stolen_often ? stolen_each * exponential(random) : 0.0;
    };
    for (size_t i = 0; i < kSlices; ++i) {
        const double speed = std::exp(host.next(random));
        const double both = stolen();
        experiment::PairSlice slice;
        slice.start =
            std::chrono::nanoseconds(static_cast<int64_t>(static_cast<double>(i) * kSliceNs));
        slice.progress.emplace_back();
        for (const auto side : {kSideA, kSideB}) {
            const double there = std::max(0.0, 1 - both - stolen());
            const double period =
                unit * (side == kSideB ? 1 + change : 1) * std::exp(own[side].next(random));
            const double mean = kSliceNs * there * speed / period;
            const double units = mean + spread * std::sqrt(mean) * normal(random);
            slice.progress[0][side] = {std::max(0.0, std::round(units)), kSliceNs};
        }
        document.slices.push_back(std::move(slice));
    }
    return document;
}

struct Tally {
    size_t pairs = 0, covered = 0;
    size_t worse = 0, found = 0;     // by the limit or more
    size_t none = 0, false_none = 0; // no change at all
    size_t less = 0, false_less = 0; // less than the limit
    size_t undecided = 0;
    std::vector<double> half_widths;
};

void examine(double change, Tally& tally, std::mt19937_64& random) {
    const experiment::Changes changes = changes_between(draw_pair(change, random));
    const experiment::Change& pace = changes.changes.at(0);
    const bool is_called = judge(changes, kLimit) == Judgement::kWorse;
    ++tally.pairs;
    tally.covered += pace.change.interval.contains(change);
    tally.half_widths.push_back(pace.change.interval.half_width());
    tally.undecided += judge(changes, kLimit) == Judgement::kUndecided;
    tally.worse += change >= kLimit;
    tally.found += change >= kLimit && is_called;
    tally.none += change == 0;
    tally.false_none += change == 0 && is_called;
    tally.less += change < kLimit;
    tally.false_less += change < kLimit && is_called;
}

} // namespace

int main(int count, char** arguments) {
    const auto [pairs, seed] = simulated::draws_of(count, arguments, 1000);
    fmt::print("{} pairs of 60 s from seed {}\n", pairs, seed);
    Tally tally;
    for (size_t pair = 0; pair < pairs; ++pair) {
        std::mt19937_64 random(seed + pair);
        // A third without any change.
        const double change =
            pair % 3 == 2 ? 0 : std::uniform_real_distribution<double>(0, kLargestChange)(random);
        examine(change, tally, random);
    }
    fmt::print("{} of {} intervals hold the truth, half of them within +- {:.3f} %\n",
               tally.covered, tally.pairs, 100 * median(tally.half_widths));
    fmt::print(
        "of {} worse by 1 % or more {} found; called worse {} of {} without a change, {} of {} "
        "below 1 %; {} undecided\n",
        tally.worse, tally.found, tally.false_none, tally.none, tally.false_less, tally.less,
        tally.undecided);
    bool good = holds(share(tally.covered, tally.pairs) >= 0.93, "95 +- 2 % of the intervals");
    good &= holds(share(tally.found, tally.worse) >= 0.95, "95 % of those of 1 % or more found");
    good &=
        holds(share(tally.false_less, tally.less) <= 0.05, "at most 5 % called worse that are not");
    return good ? 0 : 1;
}
