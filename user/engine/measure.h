// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "engine/features.h"
#include "engine/sites.h"

// How the engines measure what a call costs, on functions of this program.
namespace speedbump::engine {

// Batches in a calibration, of each kind of site in a round, and calls in a batch.
inline constexpr int kRounds = 10;
inline constexpr int kBatches = 3;
inline constexpr int kCalls = 8;
// Long enough for the spin to be one, short enough to escape interrupts.
inline constexpr nanoseconds kShortDelay = std::chrono::microseconds(2);
inline constexpr int kWarmUpCalls = 3;

// What else the machine does only ever adds to a measured time: the lower octile is near to the
// undisturbed one.
double undisturbed(std::vector<double> values);

double ns_per_call(void (*function)(), int calls);
// A call of a site that is not probed, in ns.
double plain_cost(const CalibrationSite& site);

// The floor and the accuracy of a probed site; `added_ns` measures what a call takes longer with a
// delay, over so many calls.
CalibrationRow accuracy_of(const std::string& engine, elf::SiteKind kind,
                           const std::vector<nanoseconds>& delays,
                           const std::function<double(nanoseconds delay, int calls)>& added_ns);

} // namespace speedbump::engine
