// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

// Which dose each target has in each slice of an experiment on many targets at once. Pure.
//
// A stage of kStageSlices has one level of the dose, the same for all targets. Each target has
// coins of its own, which say for each slice whether it has any, so that every slice tells of all
// of them: the fast changes tell what that dose does, the slow ones whether a smaller dose does the
// same per injected ns, also where a queue absorbs what lies within seconds. Where there are many
// targets the coins fall seldom: what n slices tell goes with the square of the dose, so for the
// same slowdown a few large doses tell more than many small ones. Doses that bend each
// other's effects are small together, so that what each does without the others can be told from
// the levels alone. Levels are balanced over a round; coins are not, as each would then tell of its
// neighbours, and late effects could not be told from the level of the pace, which the model takes
// out.
namespace speedbump::experiment {

inline constexpr size_t kLevels = 5;       // each twice the one before; kLevels: the full dose
inline constexpr size_t kStageSlices = 32; // of one level
inline constexpr size_t kRoundStages = 8;  // with every level

// A slice is of the stage's level, with or without a dose.
struct Step {
    uint8_t level = 1; // of the stage, 1 to kLevels; 0: nothing was drawn for the target
    bool on = false;
};

inline constexpr double kEvenChance = 0.5; // of a dose, in a slice

// The chance with which so many targets, each of which slows a unit by `share` while it has its
// full dose, slow it by half of `max_slowdown` together, on average; at most kEvenChance. A whole
// number of 1/4096, as coins are.
double chance_of(size_t targets, double share, double max_slowdown);

// The same for the same seed, target, stage and chance, on every machine.
std::array<Step, kStageSlices> stage_of(uint64_t seed, size_t target, size_t stage,
                                        double chance = kEvenChance);

// The full dose's share at this level, each level's being twice that of the one before; none at
// level 0.
constexpr double share_of(size_t level) {
    return level == 0 ? 0 : 1.0 / static_cast<double>(size_t{1} << (kLevels - level));
}

} // namespace speedbump::experiment
