// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "experiment/document.h"
#include "experiment/statistics.h"

// What the calls at a device's interface say about who waits for whom. Pure functions.
namespace speedbump::experiment {

enum class DeviceVerdict {
    kHostBound,   // a faster device gains little
    kDeviceBound, // a faster host gains little
    kTurns,       // each waits for the other: both gain
    kBalanced,    // neither waits for long: only both together gain
    kUncertain,   // the interface does not show it
};
std::string to_string(DeviceVerdict verdict);

// Without delays: in slices with probes, and those of the sham target.
struct DeviceResult {
    size_t progress = 0; // the point
    DeviceVerdict verdict = DeviceVerdict::kUncertain;
    size_t slices = 0;
    double unit = 0; // ns, of the first progress point; the following per unit
    double launches = 0, waits = 0;
    double wait = 0;        // ns in which the host waited in calls that wait,
    double held = 0;        // in launches, for room in a queue,
    double unsure = 0;      // and in launches of which that is not known
    double idle = 0;        // ns in which nothing was queued
    double unseen = 0;      // ns in which that is not known
    Interval waiting{0, 1}; // share of the time in which the host waits, 95 % and what is not known
    Interval idling{0, 1};  // share of the time in which nothing is queued
    uint64_t most_queued = 0;
    std::vector<std::string> notes; // what could not be seen, and what to do about it
};

// Whether this progress point is a kDevice one.
bool is_device(const Document& document, size_t progress);

// Of each kDevice point of the document.
std::vector<DeviceResult> examine_devices(const Document& document);

// Of shares of the time, each from at least to at most.
DeviceVerdict judge_device(const Interval& waiting, const Interval& idling);

} // namespace speedbump::experiment
