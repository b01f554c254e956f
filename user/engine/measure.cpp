// SPDX-License-Identifier: MIT
#include "engine/measure.h"

#include "util/clock.h"
#include "util/numbers.h"

namespace speedbump::engine {

namespace {

constexpr int kAccuracyBatches = 9;

// Half the distance between the quartiles.
double spread(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return (values[values.size() * 3 / 4] - values[values.size() / 4]) / 2;
}

} // namespace

double undisturbed(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 8];
}

double ns_per_call(void (*function)(), int calls) {
    const auto begin = monotonic_ns();
    for (int i = 0; i < calls; ++i) function();
    return static_cast<double>(monotonic_ns() - begin) / calls;
}

double plain_cost(const CalibrationSite& site) {
    std::vector<double> costs;
    for (int batch = 0; batch < kRounds * kBatches; ++batch)
        costs.push_back(ns_per_call(site.function, kCalls));
    return undisturbed(costs);
}

CalibrationRow accuracy_of(const std::string& engine, elf::SiteKind kind,
                           const std::vector<nanoseconds>& delays,
                           const std::function<double(nanoseconds delay, int calls)>& added_ns) {
    CalibrationRow row{engine, kind, {}, {}, {}};
    const auto measure = [&](nanoseconds delay) {
        const auto calls = static_cast<int>(
            std::clamp<int64_t>(20'000'000 / std::max<int64_t>(delay.count(), 5'000), 10, 2000));
        std::vector<double> added;
        for (int batch = 0; batch < kAccuracyBatches; ++batch)
            added.push_back(added_ns(delay, calls));
        return CalibrationRow::Point{delay, nanoseconds(static_cast<int64_t>(median(added))),
                                     nanoseconds(static_cast<int64_t>(spread(added)))};
    };
    const CalibrationRow::Point floor = measure(nanoseconds(0));
    row.floor = floor.measured;
    row.floor_spread = floor.spread;
    for (const nanoseconds delay : delays) row.accuracy.push_back(measure(delay));
    return row;
}

} // namespace speedbump::engine
