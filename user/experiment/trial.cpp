// SPDX-License-Identifier: MIT
#include "experiment/trial.h"

#include <algorithm>

namespace speedbump::experiment {

namespace {

using std::chrono::milliseconds;

constexpr auto kLead = milliseconds(5); // until a schedule begins
// A hit whose thread has lost its CPU is counted that much later at most, or in a later slice.
constexpr auto kSettle = milliseconds(20), kLongestSettle = milliseconds(200);
constexpr auto kLongestSleep = milliseconds(50);

uint64_t count(nanoseconds time) {
    return static_cast<uint64_t>(time.count());
}

} // namespace

Trial::Trial(session::Session& session, ProgressPoint& point, TrialPlan plan)
    : session_(session), point_(point), plan_(std::move(plan)) {
    measured_.slice_ns = static_cast<double>(plan_.slice.count());
    measured_.targets.resize(plan_.targets.size());
    stages_.resize(plan_.targets.size());
    nanoseconds longest{0};
    for (const TrialTarget& target : plan_.targets) {
        floors_.push_back(target.members.empty() ? nanoseconds(0)
                                                 : session_.floor(target.members.front()));
        longest = std::max(longest, target.dose);
    }
    const nanoseconds ring = plan_.slice * session::Schedule::kRing;
    settle_ = longest + std::clamp<nanoseconds>(ring / 4, kSettle, kLongestSettle);
}

Trial::~Trial() {
    if (session_.schedule() == nullptr) return;
    session_.schedule()->end();
    for (const TrialTarget& target : plan_.targets)
        for (const uint32_t member : target.members) session_.set_column(member, std::nullopt);
    if (plan_.progress) session_.set_column(*plan_.progress, std::nullopt);
}

Result<void> Trial::begin() {
    const auto refused = [] {
        return make_error(ErrorKind::kUnsupported, "the session has no schedule for its targets");
    };
    if (session_.schedule() == nullptr || session_.schedule()->columns() < plan_.columns())
        return refused();
    for (uint32_t column = 0; column < plan_.targets.size(); ++column)
        for (const uint32_t member : plan_.targets[column].members)
            if (!session_.set_column(member, column)) return refused();
    if (plan_.progress) {
        const auto last = static_cast<uint32_t>(plan_.targets.size());
        if (!session_.set_column(*plan_.progress, last)) return refused();
    } else if (!point_.begin_slices()) {
        return make_error(ErrorKind::kUnsupported, "the progress point does not tell of slices");
    }
    is_on_ = true;
    begin_schedule();
    return {};
}

void Trial::begin_schedule() {
    session_.schedule()->begin(monotonic_ns() + count(kLead), plan_.slice);
    if (!plan_.progress) point_.begin_slices();
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
        tend();
    }
    return {};
}

void Trial::end() {
    is_on_ = false;
    session_.schedule()->end();
    take_in();
}

void Trial::tend() {
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
        measured_.units.push_back(static_cast<double>(
            plan_.progress ? counts.back().hits : point_.take_slice(slice).value_or(0)));
        for (size_t target = 0; target < plan_.targets.size(); ++target) {
            TargetSlices& into = measured_.targets[target];
            into.steps.push_back(written_.front()[target]);
            into.delays.push_back(static_cast<double>(counts[target].delays));
            // Against a hit without delay, which costs its floor too.
            const nanoseconds injected =
                counts[target].measured -
                floors_[target] * static_cast<int64_t>(counts[target].delays);
            into.injected.push_back(std::max(0.0, static_cast<double>(injected.count())));
        }
        written_.pop_front();
    }
}

} // namespace speedbump::experiment
