// SPDX-License-Identifier: MIT
#include "experiment/sliced_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "experiment/analysis.h"
#include "experiment/host.h"
#include "experiment/trial.h"
#include "targets/parser.h"
#include "util/clock.h"

namespace speedbump::experiment {

namespace {

using std::chrono::milliseconds;

constexpr auto kGuardTick = milliseconds(50);
constexpr auto kCheckSlice = milliseconds(250); // of whether it was the delays
// Of a unit's time, which the full dose of a target that matters adds.
constexpr double kFullShare = 0.1;
constexpr double kLargestShare = 1;
constexpr size_t kPiloted = 10; // of so many targets at most, hidden ones get larger doses
// A host that has other work slows for a moment, too: so many times within so long, it is the
// delays.
constexpr size_t kStrikes = 3;
constexpr auto kStrikesWithin = std::chrono::seconds(10);
constexpr int kMaxHalvings = 4;  // of all doses, by the guards
constexpr double kFirstLook = 1; // s, until the intervals are looked at for the first time
constexpr double kShownEach = 1; // s
constexpr double kLookGrowth = 1.5;

class SlicedRunner {
  public:
    SlicedRunner(Subject& subject, const Request& request, const Hooks& hooks, Document& document)
        : subject_(subject), request_(request), hooks_(hooks), document_(document) {}

    Result<void> run();

  private:
    void choose_doses();
    void keep_within_slice(Target& target);
    TrialPlan plan() const;
    Result<void> run_trial(); // until a limit, or a guard wants smaller doses
    bool is_by_delays();
    bool is_struck_too_often();
    void halve_doses(const std::string& why);
    void look(const Trial& trial);
    void keep(const Trial& trial);

    Subject& subject_;
    const Request& request_;
    const Hooks& hooks_;
    Document& document_;
    double next_look_s_ = kFirstLook;
    double shown_s_ = 0;
    int halvings_ = 0;
    std::vector<uint64_t> strikes_; // of the guard, when
};

// A hit counts for the slice in which it came: its delay is to be over within it.
void SlicedRunner::keep_within_slice(Target& target) {
    const nanoseconds longest = document_.settings.slice / 2;
    if (target.doses.empty() || target.doses[0] <= longest) return;
    target.doses[0] = longest;
    target.notes.push_back("its delay is kept at half of a slice, " +
                           targets::format_duration(longest) +
                           ": longer slices allow a longer one");
}

// Each target that matters slows a unit by the same share; all together stay within the guard.
void SlicedRunner::choose_doses() {
    size_t count = 0;
    for (const auto& group : subject_.groups()) count += !group.empty();
    const double share = std::min(
        kFullShare, request_.max_slowdown / std::max<double>(1, static_cast<double>(count)));
    const double largest = count <= kPiloted ? kLargestShare : share;
    for (size_t target = 0; target < document_.targets.size() && !subject_.stop(); ++target) {
        Target& described = document_.targets[target];
        if (subject_.groups()[target].empty()) continue;
        if (!request_.doses.empty())
            described.doses = {request_.doses.back()};
        else if (const auto dose = subject_.find_dose(target, share, share, largest))
            described.doses = {*dose};
        keep_within_slice(described);
    }
}

TrialPlan SlicedRunner::plan() const {
    TrialPlan plan;
    plan.seed = document_.seed;
    plan.slice = document_.settings.slice;
    for (size_t target = 0; target < document_.targets.size(); ++target) {
        TrialTarget& one = plan.targets.emplace_back();
        one.members = subject_.groups()[target];
        if (!document_.targets[target].doses.empty()) one.dose = document_.targets[target].doses[0];
    }
    const auto& targets = subject_.session().snapshot().targets;
    for (const PythonProgress& python : subject_.python_progress())
        for (uint32_t index = 0; index < targets.size(); ++index)
            if (targets[index].line_index == python.line) plan.progress[python.progress] = index;
    return plan;
}

// Without any delay: is the service as fast as it was? If not, others slowed it.
bool SlicedRunner::is_by_delays() {
    const double before = subject_.period();
    const auto slice = subject_.measure({ArmKind::kProbe, 0, {}}, kCheckSlice);
    if (!slice || slice->progress[0] == 0) return false;
    const double now = ns(slice->progress_time[0]) / static_cast<double>(slice->progress[0]);
    subject_.follow_period(*slice);
    return now / before - 1 < request_.max_slowdown / 2;
}

bool SlicedRunner::is_struck_too_often() {
    const uint64_t now = monotonic_ns();
    const auto within = static_cast<uint64_t>(nanoseconds(kStrikesWithin).count());
    strikes_.push_back(now);
    std::erase_if(strikes_, [&](uint64_t strike) { return now - strike > within; });
    return strikes_.size() >= kStrikes;
}

void SlicedRunner::halve_doses(const std::string& why) {
    strikes_.clear();
    for (size_t target = 0; target < document_.targets.size(); ++target)
        for (nanoseconds& dose : document_.targets[target].doses)
            dose = std::max(dose / 2, std::min(dose, subject_.least_dose(target)));
    document_.sliced.reset(); // with the doses that were too large
    next_look_s_ = kFirstLook;
    shown_s_ = 0;
    if (++halvings_ > kMaxHalvings)
        subject_.stop() = Stop{"the delays were halved four times, and still " + why, false};
    else
        subject_.warn("all delays are halved, and what was measured is begun anew: " + why);
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
    if (request_.precision > 0 && is_precise(document_, request_.precision))
        subject_.stop() = Stop{"precision", true};
}

Result<void> SlicedRunner::run_trial() {
    subject_.apply({ArmKind::kProbe, 0, {}}, nanoseconds(0)); // the pilot's last dose, and its end
    Trial trial(subject_.session(), subject_.points(), plan());
    if (auto begun = trial.begin(); !begun) return begun;
    auto waits = read_waits(subject_.pids());
    const auto keep_waits = [&] {
        keep(trial);
        const auto now = read_waits(subject_.pids());
        document_.sliced->waited += std::max(nanoseconds(0), waited_between(waits, now));
        waits = now;
    };
    Subject::Readings from = subject_.read(false);
    subject_.note_ticks(true, from.at_ns);
    while (!subject_.stop()) {
        if (subject_.is_interrupted()) break;
        subject_.note_ran(trial.go_on(kGuardTick, hooks_.wake_fd));
        if (subject_.stop()) break;
        Subject::Readings now = subject_.read(false);
        if (subject_.stop()) break;
        subject_.note_ticks(now.progress[0].units > from.progress[0].units, now.at_ns);
        if (const auto why = subject_.guard_all(from, now, subject_.period())) {
            trial.end();
            keep_waits();
            if (is_by_delays() && is_struck_too_often()) {
                halve_doses(*why);
                return {};
            }
            if (subject_.stop()) break;
            waits = read_waits(subject_.pids());
            if (auto begun = trial.begin(); !begun) return begun;
            now = subject_.read(false);
        }
        from = std::move(now);
        if (request_.time.count() > 0 && subject_.elapsed() >= request_.time)
            subject_.stop() = Stop{"time", true};
        if (!subject_.stop()) look(trial);
    }
    trial.end();
    keep_waits();
    return {};
}

Result<void> SlicedRunner::run() {
    choose_doses();
    subject_.begin();
    const bool any = std::any_of(document_.targets.begin(), document_.targets.end(),
                                 [](const Target& target) { return !target.doses.empty(); });
    if (!any && !subject_.stop())
        subject_.stop() = Stop{"no target has a delay that could be tried", false};
    while (!subject_.stop())
        if (auto ran = run_trial(); !ran) return ran;
    return {};
}

} // namespace

Result<uint32_t> columns_for_slices(const Request& request) {
    const auto refuse = [](const std::string& what) {
        return make_error(ErrorKind::kUsage,
                          "--slice: up to 50ms the clock switches all targets at once; " + what);
    };
    if (request.slice < kShortestSwitched) return refuse("1ms is the shortest");
    if (request.blocks > 0)
        return refuse("there are no blocks to count: give --time or --precision");
    size_t columns = 0;
    for (const targets::TargetLine& line : request.file.lines) columns += !line.exclude;
    for (const ProgressSpec& spec : request.progress) {
        columns += spec.kind == ProgressSpec::Kind::kPython;
        if (!is_told_by_slice(spec))
            return refuse("progress of " + spec.text + " can't be told by slice");
    }
    return static_cast<uint32_t>(columns);
}

Result<void> run_slices(Subject& subject, const Request& request, const Hooks& hooks,
                        Document& document) {
    return SlicedRunner(subject, request, hooks, document).run();
}

} // namespace speedbump::experiment
