// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiment/device_verdict.h"
#include "experiment/document.h"
#include "experiment/statistics.h"

// What the measurements of a document say. Pure functions; all times in ns per unit of progress
// unless said otherwise.
namespace speedbump::experiment {

// What can be said before the interval is this narrow is no more than that it is not known yet.
inline constexpr double kDefaultPrecision = 0.05;

enum class Verdict {
    kMatters,   // the criticality differs from 0 (Holm-corrected)
    kHidden,    // it lies within twice --precision of 0, or only matters beyond a slack
    kUncertain, // more blocks are needed
    kUnknown,   // never called, or no dose was measured
};
std::string to_string(Verdict verdict);

// The mean of a group of slices, for plots.
struct Point {
    double x = 0;
    double y = 0;
    double y_error = 0; // standard error
    size_t slices = 0;
};

struct TargetResult {
    size_t target = 0;
    ShapeEstimate shape; // shape.slope is the criticality k
    size_t blocks = 0;
    double p = 1; // of k = 0, after Holm's correction for all targets
    Verdict verdict = Verdict::kUnknown;
    double calls_per_unit = 0;
    // Change of the period when each call takes 1 us less; only where the line is straight down
    // to no delay.
    std::optional<Estimate> gain;
    std::optional<Estimate> confirmed; // k of fresh blocks
    double waited = 0; // for a CPU, by all threads, for each injected second: contention that the
                       // delays made themselves
    size_t blocks_wanted = 0;              // for the precision; 0: it is reached, or cannot be told
    std::vector<Point> points;             // by dose, against each block's level
    std::vector<Observation> observations; // of the main blocks, relative to each block's level
};

struct LatencyRow {
    Arm arm;
    Latency latency; // medians over slices
};

// All that one progress point tells.
struct ProgressResult {
    size_t progress = 0;
    double period = 0;                 // with probes and without delay
    size_t slices = 0;                 // that could be used
    std::optional<Estimate> looking;   // period with probes minus period without
    std::optional<Estimate> sham;      // k of the sham target
    std::vector<TargetResult> targets; // ranked, controls last
    std::vector<LatencyRow> latencies;
    // Of short slices only: over how many of them an effect arrives (0: the rest are of blocks),
    // and the targets, by their index, of which one's delay changes what the other's does.
    size_t arrives_within = 0;
    std::vector<double> arrived; // share of an effect, 0, 1, ... slices later, summed up
    bool arrives_later = false;  // some of it, or all
    std::vector<std::pair<size_t, size_t>> pairs;
};

// What the targets do on one host of a fleet.
struct HostResult {
    size_t host = 0;
    double period = 0;
    std::vector<TargetResult> targets; // in the document's order
};

struct Results {
    bool valid = false;
    std::vector<std::string> invalid_because;
    std::vector<ProgressResult> progress;
    std::vector<DeviceResult> devices;
    std::vector<HostResult> hosts; // of a fleet
};

// A sentence when threads had to wait for CPUs without any delay, and one for each target whose
// delays made them wait: what that cost is in its criticality.
std::vector<std::string> contention_warnings(const Document& document);
// Where slices have too few units of a progress point to tell anything.
std::vector<std::string> counting_warnings(const Document& document);

Results analyse(const Document& document);
// Of one progress point, by its index.
ProgressResult examine_progress(const Document& document, size_t progress);

// Whether the intervals of all targets are as narrow as `precision`, on the first progress point.
bool is_precise(const Document& document, double precision);

} // namespace speedbump::experiment
