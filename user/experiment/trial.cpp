// SPDX-License-Identifier: MIT
#include "experiment/trial.h"

#include <algorithm>

namespace speedbump::experiment {

namespace {

using std::chrono::milliseconds;

constexpr auto kLead = milliseconds(5); // until a schedule begins
// A hit whose thread has lost its CPU is counted that much later at most, or in a later slice.
constexpr auto kSettle = milliseconds(20), kLongestSettle = milliseconds(200);
// Should this program hang, all delays end that much later.
constexpr auto kAhead = std::chrono::seconds(2);
constexpr auto kLongestSleep = milliseconds(50);

uint64_t count(nanoseconds time) {
    return static_cast<uint64_t>(time.count());
}

} // namespace

Trial::Trial(session::Session& session, const std::vector<std::unique_ptr<ProgressPoint>>& points,
             TrialPlan plan)
    : session_(session), points_(points), plan_(std::move(plan)) {
    measured_.slice = plan_.slice;
    measured_.units.resize(points_.size());
    measured_.targets.resize(plan_.targets.size());
    stages_.resize(plan_.targets.size());
    nanoseconds longest{0};
    for (const TrialTarget& target : plan_.targets) {
        floors_.push_back(target.members.empty() ? nanoseconds(0)
                                                 : session_.floor(target.members.front()));
        longest = std::max(longest, target.dose);
        measured_.targets[floors_.size() - 1].dose = target.dose;
    }
    const nanoseconds ring = plan_.slice * session::Schedule::kRing;
    settle_ = longest + std::clamp<nanoseconds>(ring / 4, kSettle, kLongestSettle);
}

Trial::~Trial() {
    if (session_.schedule() == nullptr) return;
    session_.schedule()->end();
    for (const TrialTarget& target : plan_.targets)
        for (const uint32_t member : target.members) session_.set_column(member, std::nullopt);
    for (const auto& [point, target] : plan_.progress) session_.set_column(target, std::nullopt);
}

Result<void> Trial::begin() {
    const auto refused = [] {
        return make_error(ErrorKind::kUnsupported, "the session has no schedule for its targets");
    };
    if (session_.schedule() == nullptr || session_.schedule()->columns() < plan_.columns())
        return refused();
    if (!set_columns()) return refused();
    if (!begin_points())
        return make_error(ErrorKind::kUnsupported, "a progress point does not tell of slices");
    is_on_ = true;
    begin_schedule();
    return {};
}

// False where one can't be.
bool Trial::set_columns() {
    const auto count_of_targets = static_cast<uint32_t>(plan_.targets.size());
    for (uint32_t column = 0; column < count_of_targets; ++column)
        for (const uint32_t member : plan_.targets[column].members)
            if (!session_.set_column(member, column)) return false;
    uint32_t next = count_of_targets;
    for (const auto& [point, target] : plan_.progress) {
        const std::vector<uint32_t> alone = {target};
        const auto same = std::find_if(plan_.targets.begin(), plan_.targets.end(),
                                       [&](const auto& one) { return one.members == alone; });
        progress_columns_[point] = static_cast<size_t>(same - plan_.targets.begin());
        if (same != plan_.targets.end()) continue;
        progress_columns_[point] = next;
        if (!session_.set_column(target, next++)) return false;
    }
    return true;
}

// False where one can't.
bool Trial::begin_points() {
    for (size_t point = 0; point < points_.size(); ++point)
        if (!plan_.progress.contains(point) && !points_[point]->begin_slices()) return false;
    return true;
}

void Trial::begin_schedule() {
    session_.schedule()->begin(monotonic_ns() + count(kLead), plan_.slice);
    begin_points();
    written_.clear();
    late_.reset();
    write_ahead();
}

Result<void> Trial::go_on(nanoseconds time, int wake_fd) {
    const uint64_t end = monotonic_ns() + count(time);
    for (uint64_t now = monotonic_ns(); now < end; now = monotonic_ns()) {
        const nanoseconds left(end - now);
        // A quarter of the ring, which leaves time to be late.
        const nanoseconds sleep = std::min<nanoseconds>(
            {left, kLongestSleep, plan_.slice * (session::Schedule::kRing / 4)});
        if (auto ran = session_.run_for(std::chrono::ceil<milliseconds>(sleep), wake_fd); !ran)
            return ran;
        catch_up();
    }
    return {};
}

void Trial::end() {
    if (!is_on_) return;
    is_on_ = false;
    session_.schedule()->end();
    take_in();
    // What was written beyond this was not all on: the next schedule has those slices.
    first_ += session_.schedule()->taken();
}

void Trial::catch_up() {
    if (!is_on_) return;
    session::Schedule& schedule = *session_.schedule();
    take_in();
    if (!late_) return write_ahead();
    // What was written in time is over soon, and then all is begun anew.
    if (schedule.taken() < *late_) return;
    ++gaps_;
    first_ += *late_;
    begin_schedule();
}

const Step& Trial::step_of(size_t target, uint64_t slice) {
    const uint64_t stage = slice / kStageSlices;
    if (stage != stage_) {
        for (size_t each = 0; each < stages_.size(); ++each)
            stages_[each] = stage_of(plan_.seed, each, stage);
        stage_ = stage;
    }
    return stages_[target][slice % kStageSlices];
}

std::vector<nanoseconds> Trial::doses_of(uint64_t slice) {
    std::vector<nanoseconds> doses;
    std::vector<Step>& steps = written_.emplace_back();
    for (size_t target = 0; target < plan_.targets.size(); ++target) {
        const Step& step = steps.emplace_back(step_of(target, slice));
        const auto full = static_cast<double>(plan_.targets[target].dose.count());
        doses.emplace_back(step.on ? static_cast<int64_t>(full * share_of(step.level)) : 0);
    }
    return doses;
}

void Trial::write_ahead() {
    session::Schedule& schedule = *session_.schedule();
    while (schedule.room() > 0) {
        const uint64_t slice = schedule.written();
        if (schedule.start_of(slice) > monotonic_ns() + count(kAhead)) return;
        if (schedule.add(doses_of(first_ + slice))) continue;
        schedule.end();
        late_ = slice;
        return;
    }
}

void Trial::take_in() {
    session::Schedule& schedule = *session_.schedule();
    const uint64_t now = monotonic_ns();
    while (schedule.taken() < late_.value_or(schedule.written()) &&
           now >= schedule.start_of(schedule.taken() + 1) + count(settle_)) {
        const uint64_t slice = schedule.taken();
        const std::vector<engine::SliceCounts> counts = schedule.take();
        for (size_t point = 0; point < points_.size(); ++point)
            measured_.units[point].push_back(plan_.progress.contains(point)
                                                 ? counts[progress_columns_.at(point)].hits
                                                 : points_[point]->take_slice(slice).value_or(0));
        for (size_t target = 0; target < plan_.targets.size(); ++target) {
            SlicedTarget& into = measured_.targets[target];
            into.steps.push_back(written_.front()[target]);
            into.calls += counts[target].hits;
            into.delays.push_back(counts[target].delays);
            // Against a hit without delay, which costs its floor too.
            const nanoseconds injected =
                counts[target].measured -
                floors_[target] * static_cast<int64_t>(counts[target].delays);
            into.injected_ns.push_back(count(std::max(injected, nanoseconds(0))));
        }
        written_.pop_front();
    }
}

} // namespace speedbump::experiment
