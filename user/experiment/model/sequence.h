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
// same per injected ns, also where a queue absorbs what lies within seconds. Doses that bend each
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

// The same for the same seed, target and stage, on every machine.
std::array<Step, kStageSlices> stage_of(uint64_t seed, size_t target, size_t stage);

// The full dose's share at this level; none at level 0.
double share_of(size_t level);

} // namespace speedbump::experiment
