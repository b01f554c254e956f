// SPDX-License-Identifier: MIT
#include "experiment/columns.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "util/clock.h"

namespace speedbump::experiment {

namespace {

using std::chrono::milliseconds;

constexpr auto kSettle = milliseconds(20), kLongestSettle = milliseconds(200);
constexpr int kMostVainStarts = 100;

} // namespace

nanoseconds settle_of(nanoseconds slice, nanoseconds longest_delay) {
    const nanoseconds ring = slice * session::Schedule::kRing;
    return longest_delay + std::clamp<nanoseconds>(ring / 4, kSettle, kLongestSettle);
}

Result<void> Starts::note(bool is_in_time) {
    vain_ = is_in_time ? 0 : vain_ + 1;
    if (vain_ < kMostVainStarts) return {};
    return make_error(ErrorKind::kTimeout,
                      fmt::format("this program gets no CPU in time to write the slices ahead: {} "
                                  "times in a row the first one had begun by then",
                                  vain_))
        .with_hint("leave it some CPU, or take long slices (--slice 200ms)");
}

Columns::Columns(session::Session& session,
                 const std::vector<std::unique_ptr<ProgressPoint>>& points,
                 std::vector<Members> targets, TargetProgress progress)
    : session_(session),
      points_(points),
      targets_(std::move(targets)),
      progress_(std::move(progress)) {
    injected_.resize(targets_.size());
}

Columns::~Columns() {
    if (session_.schedule() == nullptr) return;
    session_.schedule()->end();
    for (const Members& members : targets_)
        for (const uint32_t member : members) session_.set_column(member, std::nullopt);
    for (const auto& [point, members] : progress_)
        for (const uint32_t member : members) session_.set_column(member, std::nullopt);
}

Result<void> Columns::set() {
    const auto refused = [] {
        return make_error(ErrorKind::kUnsupported, "the session has no schedule for its targets");
    };
    if (session_.schedule() == nullptr ||
        session_.schedule()->columns() < targets_.size() + progress_.size())
        return refused();
    if (is_shared())
        return make_error(ErrorKind::kUsage,
                          "a progress point is one of several lines that are one target (--whole), "
                          "which slices can't tell apart")
            .with_hint("leave its line out, or take a --slice of more than 50ms");
    if (!set_targets()) return refused();
    if (!clear_points())
        return make_error(ErrorKind::kUnsupported, "a progress point does not tell of slices");
    return {};
}

// Whether a progress point is a part of a target.
bool Columns::is_shared() const {
    for (const auto& [point, members] : progress_)
        for (const Members& target : targets_)
            if (target != members &&
                std::find_first_of(target.begin(), target.end(), members.begin(), members.end()) !=
                    target.end())
                return true;
    return false;
}

// False where one can't be.
bool Columns::set_targets() {
    const auto count_of_targets = static_cast<uint32_t>(targets_.size());
    for (uint32_t column = 0; column < count_of_targets; ++column)
        for (const uint32_t member : targets_[column])
            if (!session_.set_column(member, column)) return false;
    uint32_t next = count_of_targets;
    std::map<Members, uint32_t> columns; // of points that are none of the targets
    for (const auto& [point, members] : progress_) {
        const auto same = std::find(targets_.begin(), targets_.end(), members);
        progress_columns_[point] = static_cast<size_t>(same - targets_.begin());
        if (same != targets_.end()) continue;
        const auto [column, is_new] = columns.try_emplace(members, next);
        progress_columns_[point] = column->second;
        if (!is_new) continue; // the same point again
        for (const uint32_t member : members)
            if (!session_.set_column(member, next)) return false;
        ++next;
    }
    return true;
}

// False where one can't.
bool Columns::clear_points() {
    for (size_t point = 0; point < points_.size(); ++point)
        if (!progress_.contains(point) && !points_[point]->clear_slices()) return false;
    return true;
}

void Columns::clear() {
    session_.schedule()->clear();
    clear_points(); // which set() has seen that it can
}

void Columns::begin(uint64_t start_ns, nanoseconds slice) {
    session_.schedule()->begin(start_ns, slice);
    slice_ = slice;
}

SliceReading Columns::take() {
    SliceReading reading;
    const nanoseconds host = slice_ * std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN));
    const uint64_t slice = session_.schedule()->taken();
    const std::vector<engine::SliceCounts> counts = session_.schedule()->take();
    for (size_t point = 0; point < points_.size(); ++point) {
        engine::SliceProgress done;
        if (!progress_.contains(point)) {
            done = points_[point]->take_slice(slice).value_or(done);
        } else {
            const engine::SliceCounts& seen = counts[progress_columns_.at(point)];
            done = {seen.hits, seen.since};
        }
        reading.points.push_back({done.units, static_cast<uint64_t>(done.since.count())});
    }
    for (size_t target = 0; target < targets_.size(); ++target) {
        const engine::SliceCounts& seen = counts[target];
        reading.targets.push_back({seen.hits, seen.delays,
                                   injected_[target].add({.hits = seen.hits,
                                                          .delays = seen.delays,
                                                          .measured = ns(seen.measured),
                                                          .undelayed = ns(seen.undelayed)},
                                                         ns(slice_), ns(host))});
    }
    return reading;
}

} // namespace speedbump::experiment
