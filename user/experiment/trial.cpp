// SPDX-License-Identifier: MIT
#include "experiment/trial.h"

#include <algorithm>

namespace speedbump::experiment {

namespace {

using std::chrono::milliseconds;

constexpr auto kLead = milliseconds(5); // until a schedule begins
// Should this program hang, all delays end that much later.
constexpr auto kAhead = std::chrono::seconds(2);
constexpr auto kLongestSleep = milliseconds(50);

uint64_t count(nanoseconds time) {
    return static_cast<uint64_t>(time.count());
}

std::vector<Members> members_of(const TrialPlan& plan) {
    std::vector<Members> members;
    for (const TrialTarget& target : plan.targets) members.push_back(target.members);
    return members;
}

} // namespace

Trial::Trial(session::Session& session, const std::vector<std::unique_ptr<ProgressPoint>>& points,
             TrialPlan plan)
    : session_(session),
      plan_(std::move(plan)),
      columns_(session, points, members_of(plan_), plan_.progress) {
    measured_.slice = plan_.slice;
    measured_.chance = plan_.chance;
    measured_.units.resize(points.size());
    measured_.since_ns.resize(points.size());
    stages_.resize(plan_.targets.size());
    nanoseconds longest{0};
    for (const TrialTarget& target : plan_.targets) {
        longest = std::max(longest, target.dose);
        measured_.targets.emplace_back().dose = target.dose;
    }
    settle_ = settle_of(plan_.slice, longest);
}

Result<void> Trial::begin() {
    if (auto set = columns_.set(); !set) return set;
    is_on_ = true;
    return begin_schedule();
}

// The start is chosen last: on a host of many CPUs clearing takes longer than it lies ahead.
Result<void> Trial::begin_schedule() {
    columns_.clear();
    columns_.begin(monotonic_ns() + count(kLead), plan_.slice);
    written_.clear();
    late_.reset();
    write_ahead();
    return starts_.note(late_ != 0u);
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
        if (auto caught = catch_up(); !caught) return caught;
    }
    return {};
}

void Trial::limit(uint8_t highest) {
    plan_.highest = highest;
    stage_ = UINT64_MAX; // is drawn again
}

void Trial::end() {
    if (!is_on_) return;
    is_on_ = false;
    session_.schedule()->end();
    take_in();
    // What was written beyond this was not all on: the next schedule has those slices.
    first_ += session_.schedule()->taken();
}

Result<void> Trial::catch_up() {
    if (!is_on_) return {};
    session::Schedule& schedule = *session_.schedule();
    take_in();
    if (!late_) {
        write_ahead();
        return {};
    }
    // What was written in time is over soon, and then all is begun anew.
    if (schedule.taken() < *late_) return {};
    ++gaps_;
    first_ += *late_;
    return begin_schedule();
}

const Step& Trial::step_of(size_t target, uint64_t slice) {
    const uint64_t stage = slice / kStageSlices;
    if (stage != stage_) {
        for (size_t each = 0; each < stages_.size(); ++each) {
            stages_[each] = stage_of(plan_.seed, each, stage, plan_.chance);
            for (Step& step : stages_[each]) step.level = std::min(step.level, plan_.highest);
        }
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
        const SliceReading reading = columns_.take();
        for (size_t point = 0; point < reading.points.size(); ++point) {
            measured_.units[point].push_back(reading.points[point].units);
            measured_.since_ns[point].push_back(reading.points[point].since_ns);
        }
        for (size_t target = 0; target < plan_.targets.size(); ++target) {
            SlicedTarget& into = measured_.targets[target];
            into.steps.push_back(written_.front()[target]);
            into.calls += reading.targets[target].calls;
            into.delays.push_back(reading.targets[target].delays);
            into.injected_ns.push_back(reading.targets[target].injected_ns);
        }
        written_.pop_front();
    }
}

} // namespace speedbump::experiment
