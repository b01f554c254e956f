// SPDX-License-Identifier: MIT
#include "fleet/combine.h"

#include <algorithm>
#include <array>
#include <utility>

namespace speedbump::fleet {

using experiment::SlicedTarget;

namespace {

// When the units were done by which the least has grown. One of the slowest that has done just
// those is the slowest still, and tells it: the last one, as all have done them then. Else all have
// done more, and it is their mean time.
uint64_t since_of(uint64_t grown, const std::vector<SliceReading::Point>& slowest,
                  nanoseconds slice) {
    double own = 0, units = 0, all = 0;
    bool is_own = false;
    for (const SliceReading::Point& done : slowest) {
        units += static_cast<double>(done.units);
        all += static_cast<double>(done.since_ns);
        if (done.units != grown) continue;
        is_own = true;
        own = std::max(own, static_cast<double>(done.since_ns));
    }
    const auto count = static_cast<double>(grown);
    const double since = is_own ? own : units > 0 ? all / units * count : 0;
    constexpr double kMost = 0x1p62; // which an integer can hold
    return static_cast<uint64_t>(
        std::min({since, count * static_cast<double>(slice.count()), kMost}));
}

} // namespace

double share_of(bool each, size_t level) {
    constexpr std::array<double, experiment::kLevels + 1> kOfEach = {0,   1.0 / 8, 1.0 / 4,
                                                                     0.5, 3.0 / 4, 1};
    return each ? kOfEach.at(level) : experiment::share_of(level);
}

Combiner::Combiner(Plan plan, size_t hosts) : plan_(std::move(plan)), told_(hosts) {
    sliced_.slice = plan_.slice;
    sliced_.units.resize(plan_.progress.size());
    sliced_.since_ns.resize(plan_.progress.size());
    totals_.resize(plan_.progress.size());
    for (const nanoseconds dose : plan_.doses) {
        SlicedTarget& target = sliced_.targets.emplace_back();
        target.dose = dose;
    }
    for (Told& told : told_) {
        told.units.resize(plan_.progress.size());
        told.since_ns.resize(plan_.progress.size());
        told.targets.resize(plan_.functions);
    }
}

bool Combiner::has_progress(const FleetSlice& slice) const {
    return std::all_of(plan_.progress.begin(), plan_.progress.end(), [&](const Combination& one) {
        return one.kind != Combination::Kind::kAt || slice.hosts[one.host].has_value();
    });
}

// The slowest is the one that has done the least so far: of single slices, whose edges cut units
// apart, the least would always be one too few. Where a host comes or goes all begin at the same.
SliceReading::Point Combiner::grown_minimum(size_t point, const FleetSlice& slice) {
    Totals& totals = totals_[point];
    std::vector<bool> is_in;
    for (const auto& host : slice.hosts) is_in.push_back(host.has_value());
    if (is_in != totals.in) totals = {std::vector<uint64_t>(told_.size()), is_in, 0};
    std::vector<SliceReading::Point> slowest; // of those that had done the least before
    uint64_t least = UINT64_MAX;
    for (size_t host = 0; host < told_.size(); ++host) {
        if (!is_in[host]) continue;
        const SliceReading::Point& done = slice.hosts[host]->points[point];
        if (totals.of[host] == totals.least) slowest.push_back(done);
        totals.of[host] += done.units;
        least = std::min(least, totals.of[host]);
    }
    const uint64_t grown = least - std::exchange(totals.least, least);
    return {grown, since_of(grown, slowest, plan_.slice)};
}

SliceReading::Point Combiner::point_of(size_t point, const FleetSlice& slice) {
    const Combination& one = plan_.progress[point];
    if (one.kind == Combination::Kind::kAt) return slice.hosts[one.host]->points[point];
    if (one.kind == Combination::Kind::kMin) return grown_minimum(point, slice);
    SliceReading::Point sum;
    for (const auto& host : slice.hosts) {
        if (!host) continue;
        sum.units += host->points[point].units;
        sum.since_ns += host->points[point].since_ns;
    }
    return sum;
}

void Combiner::add_targets(const FleetSlice& slice, size_t parts) {
    for (size_t target = 0; target < sliced_.targets.size(); ++target) {
        SlicedTarget& into = sliced_.targets[target];
        uint64_t injected = 0, delays = 0;
        for (size_t host = 0; host < told_.size(); ++host) {
            if (!slice.hosts[host]) continue;
            const size_t function = plan_.each ? target / told_.size() : target;
            if (plan_.target_of(function, host, told_.size()) != target) continue;
            const SliceReading::Column& column = slice.hosts[host]->targets[function];
            into.calls += column.calls;
            delays += column.delays;
            injected += column.injected_ns;
        }
        into.steps.push_back(slice.steps[target]);
        into.delays.push_back(delays);
        into.injected_ns.push_back(plan_.each ? injected : (injected + parts / 2) / parts);
    }
}

bool Combiner::add(const FleetSlice& slice) {
    const auto parts = static_cast<size_t>(std::count_if(
        slice.hosts.begin(), slice.hosts.end(), [](const auto& host) { return host.has_value(); }));
    if (parts == 0 || !has_progress(slice)) return false;
    parts_ += parts;
    for (size_t point = 0; point < plan_.progress.size(); ++point) {
        const SliceReading::Point done = point_of(point, slice);
        sliced_.units[point].push_back(done.units);
        sliced_.since_ns[point].push_back(done.since_ns);
    }
    add_targets(slice, parts);
    for (size_t host = 0; host < told_.size(); ++host) {
        Told& told = told_[host];
        const auto& reading = slice.hosts[host];
        told.told.push_back(reading.has_value());
        for (size_t point = 0; point < plan_.progress.size(); ++point) {
            const auto done = reading ? reading->points[point] : SliceReading::Point();
            told.units[point].push_back(done.units);
            told.since_ns[point].push_back(done.since_ns);
        }
        for (size_t function = 0; function < plan_.functions; ++function) {
            SlicedTarget& into = told.targets[function];
            const SliceReading::Column column =
                reading ? reading->targets[function] : SliceReading::Column();
            into.calls += column.calls;
            into.delays.push_back(column.delays);
            into.injected_ns.push_back(column.injected_ns);
        }
    }
    if (!plan_.each)
        for (SlicedTarget& target : sliced_.targets)
            target.hosts = static_cast<double>(parts_) / static_cast<double>(sliced_.slices());
    return true;
}

void Combiner::fill(std::vector<experiment::FleetHost>& hosts) const {
    for (size_t host = 0; host < told_.size(); ++host) {
        hosts[host].told = told_[host].told;
        hosts[host].units = told_[host].units;
        hosts[host].since_ns = told_[host].since_ns;
        hosts[host].targets = told_[host].targets;
    }
}

} // namespace speedbump::fleet
