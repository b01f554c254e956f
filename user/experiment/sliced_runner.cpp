// SPDX-License-Identifier: MIT
#include "experiment/sliced_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "experiment/analysis.h"
#include "experiment/design.h"
#include "experiment/guard.h"
#include "experiment/host.h"
#include "experiment/pace.h"
#include "experiment/slices.h"
#include "experiment/trial.h"
#include "targets/parser.h"
#include "util/clock.h"
#include "util/units.h"

namespace speedbump::experiment {

namespace {

using std::chrono::milliseconds;

constexpr auto kGuardTick = milliseconds(50);
constexpr uint64_t kFewestCalls = 10; // fewer are counted once more, and longer:
constexpr auto kLongPlain = std::chrono::seconds(2);
constexpr double kFirstLook = 1; // s, until the intervals are looked at for the first time
constexpr double kShownEach = 1; // s
constexpr double kLookGrowth = 1.5;
constexpr int kSliceGrowth = 4;

nanoseconds longer(nanoseconds slice) {
    return std::min<nanoseconds>(kSliceGrowth * slice, kLongestSwitched);
}

class SlicedRunner {
  public:
    SlicedRunner(Subject& subject, const Request& request, const Hooks& hooks, Document& document)
        : subject_(subject), request_(request), hooks_(hooks), document_(document) {}

    Result<void> run();

  private:
    void choose_doses();
    void keep_within_slice();
    TrialPlan plan() const;
    Result<void> run_trial(); // until a limit, or all is to begin anew
    void leave_out_largest(Trial& trial, const std::string& why);
    bool has_time(nanoseconds before) const;
    bool may_begin_smaller() const;
    bool may_begin_longer() const;
    bool arrives_late(const SlicedLook& seen);
    void begin_smaller();
    void lengthen_slice();
    void forget_measured();
    void look(const Trial& trial);
    void keep(const Trial& trial);

    Subject& subject_;
    const Request& request_;
    const Hooks& hooks_;
    Document& document_;
    double share_ = kLargeShare;  // of a unit's time, which each target that matters adds
    double chance_ = kEvenChance; // of a dose, in a slice
    // What all begins anew with, if it does.
    enum class Anew { kNot, kSmallerDoses, kLongerSlices };
    Anew anew_ = Anew::kNot;
    nanoseconds pilot_{0};            // what it took to choose doses
    bool is_precise_ = false;         // as it was looked at last
    std::optional<size_t> suspected_; // slices, when effects first seemed to be late
    double next_look_s_ = kFirstLook;
    double shown_s_ = 0;
    uint8_t highest_ = kLevels; // level that is drawn: the guards left out what is larger
    Guard guard_{document_.settings};
    Strikes strikes_;
};

// A hit counts for the slice in which it came: its delay is to be over within it.
void SlicedRunner::keep_within_slice() {
    const nanoseconds longest = document_.settings.slice / 2;
    for (Target& target : document_.targets) {
        if (target.doses.empty() || target.doses[0] <= longest) continue;
        target.doses[0] = longest;
        target.notes.push_back("its delay is kept at half of a slice, " +
                               targets::format_duration(longest) +
                               ": longer slices allow a longer one");
    }
}

// Each target that matters slows a unit by the same share, and the more there are, the more seldom
// each does, so that all together stay within the guard. One that is hidden gets no more: beyond
// its slack it would hide what matters now.
void SlicedRunner::choose_doses() {
    std::vector<size_t> named;
    for (size_t target = 0; target < document_.targets.size(); ++target)
        if (!subject_.groups()[target].empty()) named.push_back(target);
    if (!request_.doses.empty()) {
        for (const size_t target : named) document_.targets[target].doses = {request_.doses.back()};
        return;
    }
    const double share = std::min(share_, request_.max_slowdown);
    chance_ = chance_of(named.size(), share, request_.max_slowdown);
    hooks_.say("choosing the delays");
    auto plain = subject_.measure_plain();
    const auto is_rare = [&](size_t target) { return plain->calls[target] < kFewestCalls; };
    if (plain && std::any_of(named.begin(), named.end(), is_rare))
        plain = subject_.measure_plain(kLongPlain);
    if (!plain) return;
    for (const size_t target : named)
        if (const auto dose = subject_.dose_of(target, *plain, share, kLeastDose))
            document_.targets[target].doses = {*dose};
}

TrialPlan SlicedRunner::plan() const {
    TrialPlan plan;
    plan.seed = document_.seed;
    plan.slice = document_.settings.slice;
    plan.chance = chance_;
    plan.highest = highest_;
    for (size_t target = 0; target < document_.targets.size(); ++target) {
        TrialTarget& one = plan.targets.emplace_back();
        one.members = subject_.groups()[target];
        if (!document_.targets[target].doses.empty()) one.dose = document_.targets[target].doses[0];
    }
    plan.progress = subject_.target_progress();
    return plan;
}

// What was measured with them stays right.
void SlicedRunner::leave_out_largest(Trial& trial, const std::string& why) {
    strikes_.clear();
    if (highest_ == 1) {
        subject_.stop() = Stop{"with the smallest delays, too, " + why, false};
        return;
    }
    trial.limit(--highest_);
    subject_.warn("the largest delays are left out from now on: " + why);
}

// What was measured with doses or slices that were not the right ones.
void SlicedRunner::forget_measured() {
    anew_ = Anew::kNot;
    document_.sliced.reset();
    suspected_.reset();
    next_look_s_ = kFirstLook;
    shown_s_ = 0;
}

// Enough time is left to measure anew, and for what comes before.
bool SlicedRunner::has_time(nanoseconds before) const {
    return request_.time.count() == 0 || 2 * (subject_.elapsed() + before) <= request_.time;
}

// Doses are large, and the runner's own choice and not the user's.
bool SlicedRunner::may_begin_smaller() const {
    return request_.doses.empty() && std::min(share_, request_.max_slowdown) > kSmallShare &&
           has_time(pilot_);
}

// The length of slices is the runner's own choice, too. Of few longer ones less would be known.
bool SlicedRunner::may_begin_longer() const {
    const nanoseconds slice = document_.settings.slice;
    const nanoseconds needed = fewest_slices(Response::kLateLags) * longer(slice);
    return request_.slice.count() == 0 && slice < kLongestSwitched && has_time(nanoseconds(0)) &&
           (request_.time.count() == 0 || subject_.elapsed() + needed <= request_.time);
}

// A second time, by other slices.
bool SlicedRunner::arrives_late(const SlicedLook& seen) {
    if (!seen.is_late) return false;
    if (suspected_) return is_late_after(document_, *suspected_);
    suspected_ = document_.sliced->slices();
    return false;
}

void SlicedRunner::begin_smaller() {
    const double part = kSmallShare / share_;
    share_ = kSmallShare;
    highest_ = kLevels;
    hooks_.say("the delays bend each other: smaller ones from now on");
    forget_measured();
    for (size_t target = 0; target < document_.targets.size(); ++target) // where none can be chosen
        for (nanoseconds& dose : document_.targets[target].doses)
            dose = std::max(nanoseconds(static_cast<int64_t>(ns(dose) * part)),
                            std::min<nanoseconds>(dose, kLeastDose));
    choose_doses();
    keep_within_slice();
}

// Effects arrive later than they are followed, or nearly so.
void SlicedRunner::lengthen_slice() {
    nanoseconds& slice = document_.settings.slice;
    slice = longer(slice);
    hooks_.say("effects arrive late: slices of " + show_time(slice) + " from now on");
    forget_measured();
}

void SlicedRunner::keep(const Trial& trial) {
    const nanoseconds waited = document_.sliced ? document_.sliced->waited : nanoseconds(0);
    document_.sliced = trial.measured();
    document_.sliced->waited = waited;
}

// Shows what is known, and ends it where the intervals are narrow enough: that is looked at more
// and more seldom, as it goes over all slices.
void SlicedRunner::look(const Trial& trial) {
    const double measured =
        static_cast<double>(trial.measured().slices()) * ns(document_.settings.slice) / 1e9;
    if (measured < shown_s_ + kShownEach) return;
    shown_s_ = measured;
    keep(trial);
    hooks_.after_block(document_);
    if (measured < next_look_s_) return;
    next_look_s_ = measured * kLookGrowth;
    const bool may_be_smaller = may_begin_smaller(), may_be_longer = may_begin_longer();
    if (!may_be_smaller && !may_be_longer && request_.precision <= 0) return;
    const SlicedLook seen = look_at_slices(document_, request_.precision);
    if (may_be_longer && arrives_late(seen))
        anew_ = Anew::kLongerSlices;
    else if (may_be_smaller && seen.bends) // they bend what they measure
        anew_ = Anew::kSmallerDoses;
    if (anew_ != Anew::kNot) return;
    is_precise_ = request_.precision > 0 && seen.is_precise;
    if (is_precise_) subject_.stop() = Stop{"precision", true};
}

Result<void> SlicedRunner::run_trial() {
    subject_.apply({ArmKind::kProbe, 0, {}}, nanoseconds(0)); // the pilot's last dose, and its end
    Trial trial(subject_.session(), subject_.points(), plan());
    if (auto begun = trial.begin(); !begun) return begun;
    auto waits = read_waits(subject_.pids());
    const auto keep_waits = [&] {
        // What was found precise is reported as it was looked at: with a few slices more it may not
        // be.
        if (!is_precise_) keep(trial);
        const auto now = read_waits(subject_.pids());
        document_.sliced->waited += std::max(nanoseconds(0), waited_between(waits, now));
        waits = now;
    };
    Subject::Readings first = subject_.read(false);
    guard_.begin();
    guard_.look(std::move(first), subject_.period());
    while (!subject_.stop() && anew_ == Anew::kNot) {
        if (subject_.is_interrupted()) break;
        subject_.note_ran(trial.go_on(kGuardTick, hooks_.wake_fd));
        if (subject_.stop()) break;
        Subject::Readings now = subject_.read(false);
        if (subject_.stop()) break;
        subject_.end_if_silent();
        if (const auto why = guard_.look(std::move(now), subject_.period())) {
            trial.end();
            keep_waits();
            if (subject_.is_slow_by_delays() && strikes_.add(monotonic_ns(), subject_.period()))
                leave_out_largest(trial, *why);
            if (subject_.stop()) break;
            waits = read_waits(subject_.pids());
            if (auto begun = trial.begin(); !begun) return begun;
            guard_.begin();
            guard_.look(subject_.read(false), subject_.period());
        }
        if (request_.time.count() > 0 && subject_.elapsed() >= request_.time)
            subject_.stop() = Stop{"time", true};
        if (!subject_.stop()) look(trial);
    }
    trial.end();
    keep_waits();
    return {};
}

Result<void> SlicedRunner::run() {
    const uint64_t from = monotonic_ns();
    if (request_.slice.count() == 0)
        document_.settings.slice = slice_length(subject_.period(), request_.time);
    choose_doses();
    keep_within_slice();
    pilot_ = nanoseconds(monotonic_ns() - from);
    subject_.begin();
    const bool any = std::any_of(document_.targets.begin(), document_.targets.end(),
                                 [](const Target& target) { return !target.doses.empty(); });
    if (!any && !subject_.stop())
        subject_.stop() = Stop{"no target has a delay that could be tried", false};
    while (!subject_.stop()) {
        switch (anew_) {
            case Anew::kNot:
                break;
            case Anew::kSmallerDoses:
                begin_smaller();
                break;
            case Anew::kLongerSlices:
                lengthen_slice();
                break;
        }
        if (auto ran = run_trial(); !ran) return ran;
    }
    return {};
}

} // namespace

Result<void> run_slices(Subject& subject, const Request& request, const Hooks& hooks,
                        Document& document) {
    return SlicedRunner(subject, request, hooks, document).run();
}

} // namespace speedbump::experiment
