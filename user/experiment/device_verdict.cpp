// SPDX-License-Identifier: MIT
#include "experiment/device_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "experiment/thresholds.h"
#include "util/clock.h"

namespace speedbump::experiment {

namespace {

// A share of the time that is not worth work, and by how often one share must exceed the other to
// be what counts.
constexpr double kLittle = 0.1, kDominant = 3;
// Launches that a driver takes before it makes the host wait for room: CUDA's take 1,024.
constexpr uint64_t kLikelyRoom = 1000;
constexpr double kMuchUnseen = 0.1; // of the time

struct Pair {
    double part = 0;
    double whole = 0;
};

// The sum of all parts as a share of the sum of all wholes, with the error of that.
Estimate share_of_pairs(const std::vector<Pair>& pairs) {
    Pair sum;
    for (const Pair& one : pairs) {
        sum.part += one.part;
        sum.whole += one.whole;
    }
    if (sum.whole <= 0) return {};
    const double share = sum.part / sum.whole;
    double squares = 0;
    for (const Pair& one : pairs)
        squares += (one.part - share * one.whole) * (one.part - share * one.whole);
    const auto count = static_cast<double>(pairs.size());
    if (pairs.size() < 2) return estimate_of(share, 0, 0);
    return estimate_of(share, std::sqrt(squares * count / (count - 1)) / sum.whole, count - 1);
}

// As DeviceReading has them; ns.
struct Sums {
    uint64_t launches = 0, waits = 0, gaps = 0, most_queued = 0;
    double wait = 0, launching = 0, held = 0, unsure = 0, watched = 0, idle = 0, busy = 0;
};

struct Slices {
    std::vector<Pair> waited, waited_or_unsure, idle, not_busy;
    Sums sum;
    double units = 0, time = 0;
    double without_cpu = 0; // ns, of all threads
    size_t count = 0;
};

void add(Slices& slices, const Slice& slice, const DeviceReading& device) {
    const double watched = ns(device.watched), waited = ns(device.wait) + ns(device.held);
    Sums& sum = slices.sum;
    ++slices.count;
    slices.units += static_cast<double>(slice.progress[0]);
    slices.time += ns(slice.progress_time[0]);
    slices.without_cpu += ns(slice.waited);
    sum.launches += device.launches;
    sum.waits += device.waits;
    sum.gaps += device.gaps;
    sum.most_queued = std::max(sum.most_queued, device.most_queued);
    sum.wait += ns(device.wait);
    sum.launching += ns(device.launching);
    sum.held += ns(device.held);
    sum.unsure += ns(device.unsure);
    sum.watched += ns(device.watched);
    sum.idle += ns(device.idle);
    sum.busy += ns(device.busy);
    slices.waited.push_back({waited, watched});
    slices.waited_or_unsure.push_back({waited + ns(device.unsure), watched});
    slices.idle.push_back({ns(device.idle), watched});
    slices.not_busy.push_back({watched - ns(device.busy), watched});
}

Slices slices_of(const Document& document, size_t progress) {
    Slices slices;
    for (const Block& block : document.blocks)
        for (const Slice& slice : block.slices) {
            const bool undelayed =
                slice.arm.kind == ArmKind::kProbe || slice.arm.kind == ArmKind::kSham;
            if (undelayed && progress < slice.device.size() && slice.device[progress])
                add(slices, slice, *slice.device[progress]);
        }
    return slices;
}

double within(double share) {
    return std::clamp(share, 0.0, 1.0);
}

void add_notes(DeviceResult& result, const Slices& slices) {
    if (slices.sum.watched == 0) {
        result.notes.push_back(
            slices.sum.launches == 0
                ? "nothing was launched"
                : "nobody waited for the device: what is queued can't be seen from the interface");
        return;
    }
    if (result.unseen > kMuchUnseen * result.unit)
        result.notes.push_back(
            "work that was done before anybody waited for it can't be seen from the interface: "
            "the device may have been idle for longer than is told, up to the larger number");
    if (slices.sum.launching == 0 && slices.sum.most_queued >= kLikelyRoom)
        result.notes.push_back(fmt::format(
            "up to {} launches were queued: the host may have waited in a launch for room; name "
            "the launch among the functions that wait as well",
            slices.sum.most_queued));
    if (slices.sum.unsure > 0)
        result.notes.push_back(
            "nothing was launched while nothing was queued: whether launches "
            "waited for room can't be told");
    if (slices.without_cpu > kContention * slices.time)
        result.notes.push_back(fmt::format(
            "threads of the host had no CPU for {:.2f} s in each second: as much of its waiting "
            "may have been for one, and not for the device",
            slices.without_cpu / slices.time));
    if (slices.sum.gaps > 0)
        result.notes.push_back(
            fmt::format("{} times calls were lost, and what was queued was not "
                        "known until the next wait",
                        slices.sum.gaps));
    if (result.verdict == DeviceVerdict::kUncertain)
        result.notes.push_back(
            "delay a function of the host: if it absorbs the delay (a hinge), "
            "the device is what limits");
}

DeviceResult examine_device(const Document& document, size_t progress) {
    DeviceResult result;
    result.progress = progress;
    const Slices slices = slices_of(document, progress);
    result.slices = slices.count;
    result.most_queued = slices.sum.most_queued;
    if (slices.units > 0) {
        const double units = slices.units;
        result.unit = slices.time / units;
        result.launches = static_cast<double>(slices.sum.launches) / units;
        result.waits = static_cast<double>(slices.sum.waits) / units;
        result.wait = slices.sum.wait / units;
        result.held = slices.sum.held / units;
        result.unsure = slices.sum.unsure / units;
        result.idle = slices.sum.idle / units;
        const Sums& sum = slices.sum;
        result.unseen = std::max(0.0, (sum.watched - sum.idle - sum.busy) / units);
    }
    if (slices.sum.watched > 0) {
        const bool may_be_held = slices.sum.launching == 0 && slices.sum.most_queued >= kLikelyRoom;
        const auto low = [](const std::vector<Pair>& pairs) {
            return within(share_of_pairs(pairs).interval.low);
        };
        const auto high = [](const std::vector<Pair>& pairs) {
            return within(share_of_pairs(pairs).interval.high);
        };
        result.waiting = {low(slices.waited), may_be_held ? 1 : high(slices.waited_or_unsure)};
        result.idling.low = low(slices.idle);
        result.idling.high = std::max(result.idling.low, high(slices.not_busy));
        // A host that has no CPU when its device is done waits for the CPU, for all that is seen.
        const double without_cpu = within(slices.without_cpu / slices.time);
        result.waiting.low = within(result.waiting.low - without_cpu);
        result.idling.high = within(result.idling.high + without_cpu);
        // While the host waits for the device, that is not idle; and the other way round.
        result.waiting.high = std::min(result.waiting.high, 1 - result.idling.low);
        result.idling.high = std::min(result.idling.high, 1 - result.waiting.low);
        result.verdict = judge_device(result.waiting, result.idling);
    }
    add_notes(result, slices);
    return result;
}

} // namespace

std::string to_string(DeviceVerdict verdict) {
    switch (verdict) {
        case DeviceVerdict::kHostBound:
            return "host-bound";
        case DeviceVerdict::kDeviceBound:
            return "device-bound";
        case DeviceVerdict::kTurns:
            return "turns";
        case DeviceVerdict::kBalanced:
            return "balanced";
        case DeviceVerdict::kUncertain:
            return "uncertain";
    }
    return "uncertain";
}

DeviceVerdict judge_device(const Interval& waiting, const Interval& idling) {
    const bool little_wait = waiting.high <= kLittle, little_idle = idling.high <= kLittle;
    if (little_wait && little_idle) return DeviceVerdict::kBalanced;
    if (little_wait || idling.low >= kDominant * waiting.high) return DeviceVerdict::kHostBound;
    if (little_idle || waiting.low >= kDominant * idling.high) return DeviceVerdict::kDeviceBound;
    if (waiting.low >= kLittle && idling.low >= kLittle) return DeviceVerdict::kTurns;
    return DeviceVerdict::kUncertain;
}

bool is_device(const Document& document, size_t progress) {
    return document.progress.at(progress).starts_with("device:");
}

std::vector<DeviceResult> examine_devices(const Document& document) {
    std::vector<DeviceResult> results;
    for (size_t progress = 0; progress < document.progress.size(); ++progress)
        if (is_device(document, progress)) results.push_back(examine_device(document, progress));
    return results;
}

} // namespace speedbump::experiment
