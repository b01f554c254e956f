// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "experiment/document.h"
#include "experiment/gate.h"
#include "experiment/pace.h"

// Two builds of a service side by side (experiment --ab): what was measured, and what it says.
// Pure.
namespace speedbump::experiment {

enum Side : size_t { kSideA = 0, kSideB = 1 };

// What both did at the same moments; times in ns.
struct PairSlice {
    nanoseconds start{0}; // since the beginning
    // Of each progress point, for each side.
    std::vector<std::array<Stretch, 2>> progress;
};

// What is looked at once in a second only, since the last time.
struct PairBeat {
    std::array<Stretch, 2> cpu; // units of the first progress point in CPU time
    // Of each progress point, for each side.
    std::vector<std::array<std::optional<Latency>, 2>> latency;
};

struct PairDocument {
    std::string version; // of speedbump
    std::string host;
    std::string kernel;
    std::string machine;
    int64_t started_unix_ns = 0;
    std::array<pid_t, 2> pids{};
    std::array<std::string, 2> programs; // what they run
    nanoseconds slice{0};
    double precision = 0; // of the change; 0: none was asked for
    std::vector<std::string> progress;
    std::vector<PairSlice> slices;
    std::vector<PairBeat> beats;
    bool has_cpu = false; // the same processes from beginning to end
    // For each second and side: how long threads were able to run, and had no CPU.
    std::array<double, 2> waited{};
    std::array<double, 2> ran{}; // and had one; 0: not known
    std::vector<std::string> warnings;
    double tool_cpu = 0;   // CPUs that this program used itself
    std::string stopped;   // "precision", "time", "interrupted", or what went wrong
    bool complete = false; // it stopped as planned
};

// Of b against a: the time per unit of each progress point, the CPU time per unit, percentiles.
Changes changes_between(const PairDocument& document);

// Of the first progress point so far, with an interval that holds at every look.
Estimate change_so_far(const PairDocument& document);

} // namespace speedbump::experiment
