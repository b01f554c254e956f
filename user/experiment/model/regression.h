// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "experiment/model/matrix.h"
#include "experiment/model/sequence.h"

// What each injected ns costs, of many targets at once, from the slices of one run. Pure.
namespace speedbump::experiment {

// What one target did, by slice. A hit counts for the slice in which it came.
struct TargetSlices {
    std::vector<Step> steps;
    std::vector<double> injected; // ns
    std::vector<double> delays;   // delayed hits
};

// A run in slices of one length, in order and without a gap.
struct SlicedRun {
    double slice_ns = 0;
    double chance = kEvenChance; // of a dose, of each target in each slice
    std::vector<double> units;   // of progress
    size_t lead = 0;             // they are those of so many slices before
    std::vector<TargetSlices> targets;
};

// A target at one level of its dose.
struct Cell {
    size_t target = 0;
    size_t level = 0;
    double per_unit = 0; // injected ns per unit of progress, in slices with the dose
    double per_call = 0; // ns
    double criticality = 0;
    size_t slices = 0; // with the dose
    size_t blocks = 0; // that its noise was told from; so many equal ones, where some tell more
};

// Two targets of which one matters more, or less, while the other is delayed as well. They are
// named only: what each does without the other is told from its small doses, as both are small
// together.
struct Pair {
    size_t first = 0, second = 0;
    double change = 0; // of the first one's criticality by the second one's full dose
    double error = 0;  // standard error
};

// By the level of the dose that slices have at most.
using ByLevel = std::array<double, kLevels + 1>;

struct Regression {
    std::vector<Cell> cells; // by target, then level; those with any delay
    Matrix covariance{0, 0}; // of their criticalities
    std::vector<Pair> pairs; // that stand out
    // Of each target, how far what it did together with others stands out the most, of as many
    // things as were looked at, in standard errors.
    std::vector<ByLevel> together;
    size_t looked_at = 0;
    size_t blocks = 0; // that the covariance was told from
    double period = 0; // ns per unit without delay
};

// How far a dose's effect reaches.
struct Response {
    static constexpr size_t kMaxLags = 16;                // it is followed no further
    static constexpr size_t kLateLags = 3 * kMaxLags / 4; // beyond these it is late
    static const size_t kFewestKnown; // slices that tell whether something comes later

    size_t lags = 0;             // slices after its own
    std::vector<double> arrived; // share of the effect, 0, 1, ... slices later, summed up
    bool is_cut = false;         // something comes later than that
    bool is_known = false;       // enough slices to tell that

    // Longer slices would follow it more surely.
    bool is_late() const { return is_cut || lags > kLateLags; }
};

// From all targets together.
Response find_response(const SlicedRun& run);

// The fewest that anything is told from, where effects reach `lags` slices.
size_t fewest_slices(size_t lags);

// Empty where nothing was delayed or nothing progressed, or the run is too short to tell.
Regression regress(const SlicedRun& run, const Response& response);

} // namespace speedbump::experiment
