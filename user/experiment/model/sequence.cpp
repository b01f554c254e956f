// SPDX-License-Identifier: MIT
#include "experiment/model/sequence.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace speedbump::experiment {

namespace {

// Large doses tell most of a straight line, small ones of a hinge.
constexpr std::array<uint8_t, kRoundStages> kRound = {5, 5, 5, 4, 4, 3, 2, 1};

constexpr size_t kCoins = 4096;

// splitmix64: a short sequence of its own for every key.
class Random {
  public:
    Random(uint64_t seed, uint64_t target, uint64_t part)
        : state_(mix(seed + mix(target + mix(part)))) {}

    size_t below(size_t end) { return static_cast<size_t>((next() >> 32) * end >> 32); }

  private:
    static uint64_t mix(uint64_t x) {
        x += 0x9e3779b97f4a7c15;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
        x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
        return x ^ (x >> 31);
    }
    uint64_t next() { return mix(state_++); }

    uint64_t state_;
};

template <typename Array>
void shuffle(Array& items, Random& random) {
    for (size_t left = items.size(); left > 1; --left)
        std::swap(items[left - 1], items[random.below(left)]);
}

} // namespace

double chance_of(size_t targets, double share, double max_slowdown) {
    if (targets == 0 || !(share > 0)) return kEvenChance;
    const double chance = max_slowdown / (2 * static_cast<double>(targets) * share);
    return std::min(kEvenChance, std::ceil(chance * kCoins) / kCoins);
}

std::array<Step, kStageSlices> stage_of(uint64_t seed, size_t target, size_t stage, double chance) {
    std::array<uint8_t, kRoundStages> levels = kRound;
    Random by_round(seed, UINT64_MAX, 2 * (stage / kRoundStages)); // all targets have the same
    shuffle(levels, by_round);
    Random by_stage(seed, target, 2 * stage + 1);
    const auto least = static_cast<size_t>(kCoins - chance * kCoins); // of a coin that gives a dose
    std::array<Step, kStageSlices> steps;
    for (Step& step : steps) step = {levels[stage % kRoundStages], by_stage.below(kCoins) >= least};
    return steps;
}

} // namespace speedbump::experiment
