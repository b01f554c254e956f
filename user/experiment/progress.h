// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/schedule.h"
#include "experiment/document.h"
#include "experiment/progress_spec.h"
#include "session/session.h"
#include "util/result.h"

namespace speedbump::experiment {

// A progress point as it stands: a running total, and when it was read.
struct Reading {
    uint64_t units = 0;
    uint64_t at_ns = 0; // CLOCK_MONOTONIC
};

// What the session's targets have counted, by their index, and when that was read.
struct Totals {
    std::vector<engine::Counts> targets;
    uint64_t at_ns = 0; // CLOCK_MONOTONIC
};

// One open progress point. Not thread-safe.
class ProgressPoint {
  public:
    virtual ~ProgressPoint() = default;
    // `totals` are those of now: some points are targets.
    virtual Result<Reading> read(const Totals& totals) = 0;
    // Before the session's schedule begins anew: slices are those of that one, and what was not
    // taken is nobody's. False for a point that can't be told by slice, where read() is all there
    // is.
    virtual bool clear_slices() { return false; }
    // Units in the next slice, which is over; each is asked for once, in their order. nullopt where
    // clear_slices() is false.
    virtual std::optional<engine::SliceProgress> take_slice(uint64_t /*slice*/) {
        return std::nullopt;
    }
    // kLatency: calls so far by how long they took (latency_of_bucket()); else none.
    virtual std::vector<uint64_t> latencies() { return {}; }
    // kDevice: what happened there up to the last read(), since the point was opened.
    virtual std::optional<DeviceReading> device() { return std::nullopt; }
    // kLatency, kDevice: calls so far that could not be timed.
    virtual uint64_t lost() { return 0; }
};

// Targets of a session, by their index, that are counted or delayed alike.
using Members = std::vector<uint32_t>;

// Points whose units are calls of targets of the session itself: by their number.
using TargetProgress = std::map<size_t, Members>;

// Opens all of them for the processes of the session, which must outlive them: kPython ones, and
// kNative ones that are in `targets`, by what the session counts, the others by themselves.
// kNotFound when a point is in none of the processes. `warn` receives one line per warning.
Result<std::vector<std::unique_ptr<ProgressPoint>>> open_progress(
    const std::vector<ProgressSpec>& specs, const TargetProgress& targets,
    session::Session& session, const std::function<void(const std::string&)>& warn);

// What happened at a device between two readings.
DeviceReading device_between(const DeviceReading& before, const DeviceReading& after);

// What calls took between two readings; nullopt when there were none.
std::optional<Latency> latency_between(const std::vector<uint64_t>& before,
                                       const std::vector<uint64_t>& after);

} // namespace speedbump::experiment
