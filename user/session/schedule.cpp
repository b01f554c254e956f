// SPDX-License-Identifier: MIT
#include "session/schedule.h"

#include "engine/engines.h"
#include "util/clock.h"

namespace speedbump::session {

std::vector<engine::Schedule*> Schedule::parts() const {
    std::vector<engine::Schedule*> parts = {engines_.probes->schedule()};
    if (engines_.hooks && engines_.hooks->schedule()) parts.push_back(engines_.hooks->schedule());
    if (engines_.progress_schedule != nullptr) parts.push_back(engines_.progress_schedule);
    if (parts.front() == nullptr) parts.erase(parts.begin());
    return parts;
}

void Schedule::clear() {
    for (engine::Schedule* part : parts()) part->clear();
    taken_ = end_;
}

void Schedule::begin(uint64_t start_ns, engine::nanoseconds slice) {
    start_ns_ = start_ns;
    slice_ = slice;
    end_ = taken_ = 0;
    for (engine::Schedule* part : parts()) part->begin(engine::on_host_clock(start_ns), slice);
}

bool Schedule::add(std::span<const engine::nanoseconds> doses) {
    for (engine::Schedule* part : parts()) part->add(doses);
    return monotonic_ns() < start_of(end_++);
}

void Schedule::end() {
    for (engine::Schedule* part : parts()) part->end();
}

std::vector<engine::SliceCounts> Schedule::take() {
    std::vector<engine::SliceCounts> sums(columns_);
    for (engine::Schedule* part : parts()) part->take(taken_, sums);
    ++taken_;
    return sums;
}

} // namespace speedbump::session
