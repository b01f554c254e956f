// SPDX-License-Identifier: MIT
#include "fleet/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "experiment/analysis.h"
#include "experiment/pace.h"
#include "experiment/slices.h"
#include "fleet/ensemble.h"
#include "targets/parser.h"
#include "util/clock.h"
#include "util/numbers.h"

namespace speedbump::fleet {

namespace {

using experiment::Document;
using experiment::Stop;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kTick = milliseconds(10);
constexpr auto kNoTick = seconds(5);
constexpr double kPatienceUnits = 20;
constexpr double kUnitsPerStep = 100;
constexpr double kShortestStep = 0.2, kLongestStep = 3; // s, of the pilot
constexpr int kPilotSteps = 8;
// Where one host is slowed at a time, what is hidden gets larger doses, as its slack is asked for.
constexpr double kLargestShare = 1;              // of a unit's time
constexpr double kBeyondSlack = 0.4;             // of what is injected
constexpr size_t kPiloted = 10;                  // of so many functions at most
constexpr double kRareCalls = 9, kLongPlain = 2; // s: so few are counted for longer
constexpr int kMostPlain = 5;                    // times, of what was not called at all
constexpr double kFirstLook = 1, kShownEach = 1, kLookGrowth = 1.5;

class Coordinator {
  public:
    Coordinator(const FleetRequest& request, const experiment::Hooks& hooks, Hosts& hosts)
        : request_(request), hooks_(hooks), all_(request, hooks, hosts, document_) {}

    Result<Document> run();

  private:
    double slice_s() const { return ns(request_.experiment.slice) / 1e9; }
    std::optional<Stop>& stop() { return all_.stop(); }

    double full_share() const;
    void choose_doses();
    std::optional<nanoseconds> find_dose(size_t target, double share, double largest);
    Draw draw(uint64_t slice, const std::vector<bool>& in);
    void measure_all();
    void run_trial(Combiner& combiner);
    void deal_with_guard();
    void count_rare();
    bool is_by_delays(size_t host, double before);
    double period_at(size_t host) const;
    void leave_out_largest(const std::string& why);
    bool may_begin_smaller() const;
    void begin_smaller();
    void forget_measured();
    void note_ticks(uint64_t units);
    void look(const Combiner& combiner);
    void keep(const Combiner& combiner);
    void tell_of_hosts();
    nanoseconds elapsed() const { return nanoseconds(monotonic_ns() - begun_ns_); }

    const FleetRequest& request_;
    const experiment::Hooks& hooks_;
    Document document_;
    Ensemble all_; // after the document
    uint64_t begun_ns_ = 0, last_tick_ns_ = 0;
    double next_look_s_ = kFirstLook, shown_s_ = 0;
    double share_ = experiment::kLargeShare; // of a unit's time, that a target which matters adds
    bool wants_smaller_ = false;             // what was measured is begun anew
    nanoseconds pilot_{0};                   // what it took to choose doses
    bool is_precise_ = false;                // as it was looked at last
    uint8_t highest_ =
        experiment::kLevels; // level that is drawn: the guards left out what is larger
    experiment::Strikes strikes_;
};

// As experiment::Subject::find_dose().
std::optional<nanoseconds> Coordinator::find_dose(size_t target, double share, double largest) {
    experiment::Target& described = document_.targets[target];
    hooks_.say("choosing the delays of " + described.name);
    if (all_.plain().calls[target] == 0) {
        described.notes.push_back("was not called");
        return std::nullopt;
    }
    const double calls_per_unit = all_.plain().calls[target] / all_.plain().units;
    nanoseconds delay(static_cast<int64_t>(
        std::clamp(share * all_.period() / calls_per_unit, ns(all_.least_dose(target)),
                   std::max(ns(all_.least_dose(target)), ns(request_.experiment.slice) / 2))));
    if (share >= largest) return delay;
    const double step =
        std::clamp(all_.period() * kUnitsPerStep / 1e9, kShortestStep, kLongestStep);
    std::vector<nanoseconds> doses(document_.targets.size());
    for (int i = 0; i < kPilotSteps && !stop(); ++i) {
        doses[target] = delay;
        const auto stretch = all_.measure(doses, step);
        if (!stretch) { // a guard
            delay /= 2;
            break;
        }
        if (stretch->units == 0) break;
        const double slowed = stretch->period() / all_.period() - 1;
        const double given = stretch->injected[target] / stretch->units / all_.period();
        // A slack is told from two levels beyond it.
        const bool is_seen = slowed >= share && (!request_.each || slowed >= kBeyondSlack * given);
        if (is_seen || given >= largest) break;
        if (delay * 2 > request_.experiment.slice / 2) break;
        delay *= 2;
    }
    return delay;
}

double Coordinator::full_share() const {
    const auto count = static_cast<double>(all_.functions()); // that are slowed at a time
    return std::min(share_, request_.experiment.max_slowdown / std::max(1.0, count));
}

// What is called so seldom that the warm-up may have missed it, for longer.
void Coordinator::count_rare() {
    const auto is_any_called = [this](double times) {
        for (size_t target = 0; target < document_.targets.size(); ++target)
            if (document_.targets[target].function_count > 0 && all_.plain().calls[target] <= times)
                return true;
        return false;
    };
    double times = kRareCalls;
    for (int i = 0; i < kMostPlain && !stop() && is_any_called(times); ++i) {
        if (all_.plain().time >= kMostPlain * kLongPlain * 1e9) break; // in earlier choices, too
        all_.measure_plain(kLongPlain);
        times = 0;
    }
}

void Coordinator::choose_doses() {
    const experiment::Request& request = request_.experiment;
    if (request.doses.empty()) count_rare();
    const double share = full_share();
    const double largest = request_.each && all_.functions() <= kPiloted ? kLargestShare : share;
    for (size_t target = 0; target < document_.targets.size() && !stop(); ++target) {
        experiment::Target& described = document_.targets[target];
        if (described.function_count == 0) continue;
        if (!request.doses.empty())
            described.doses = {request.doses.back()};
        else if (const auto dose = find_dose(target, share, largest))
            described.doses = {*dose};
        const nanoseconds longest = request.slice / 2;
        if (described.doses.empty() || described.doses[0] <= longest) continue;
        described.doses[0] = longest;
        described.notes.push_back("its delay is kept at half of a slice, " +
                                  targets::format_duration(longest) +
                                  ": longer slices allow a longer one");
    }
    const bool any = std::any_of(document_.targets.begin(), document_.targets.end(),
                                 [](const auto& target) { return !target.doses.empty(); });
    if (!any && !stop()) stop() = Stop{"no target has a delay that could be tried", false};
}

// --- all targets at once

// Where one host is slowed at a time they take turns by stages: levels are balanced for each.
Draw Coordinator::draw(uint64_t slice, const std::vector<bool>& in) {
    const size_t hosts = all_.hosts().size();
    const size_t stage = slice / experiment::kStageSlices;
    const size_t turn_of = stage % hosts;
    Draw draw;
    draw.steps.resize(document_.targets.size(), Step{0, false});
    std::vector<nanoseconds> doses(document_.targets.size());
    for (size_t target = 0; target < document_.targets.size(); ++target) {
        const experiment::Target& one = document_.targets[target];
        if (one.doses.empty()) continue;
        if (one.host && (*one.host != turn_of || !in[turn_of])) continue;
        const size_t own_stage = one.host ? stage / hosts : stage;
        Step step = experiment::stage_of(document_.seed, target,
                                         own_stage)[slice % experiment::kStageSlices];
        step.level = std::min(step.level, highest_);
        draw.steps[target] = step;
        if (step.on)
            doses[target] = nanoseconds(
                static_cast<int64_t>(ns(one.doses[0]) * share_of(request_.each, step.level)));
    }
    draw.doses = all_.rows_of(doses);
    return draw;
}

// As experiment::SlicedRunner has it.
void Coordinator::leave_out_largest(const std::string& why) {
    strikes_.clear();
    if (highest_ == 1) {
        stop() = Stop{"with the smallest delays, too, " + why, false};
        return;
    }
    --highest_;
    all_.warn("the largest delays are left out from now on: " + why);
}

// What was measured with doses that were too large.
void Coordinator::forget_measured() {
    document_.sliced.reset();
    next_look_s_ = kFirstLook;
    shown_s_ = 0;
}

// As experiment::SlicedRunner has it. Hosts that wait for each other have a slack, of which small
// doses tell nothing.
bool Coordinator::may_begin_smaller() const {
    const nanoseconds time = request_.experiment.time;
    return request_.experiment.doses.empty() && !request_.each &&
           full_share() > experiment::kSmallShare &&
           (time.count() == 0 || 2 * (elapsed() + pilot_) <= time);
}

void Coordinator::begin_smaller() {
    wants_smaller_ = false;
    const double part = experiment::kSmallShare / share_;
    share_ = experiment::kSmallShare;
    highest_ = experiment::kLevels;
    hooks_.say("the delays bend each other: smaller ones from now on");
    for (size_t target = 0; target < document_.targets.size(); ++target) // where none can be chosen
        for (nanoseconds& dose : document_.targets[target].doses)
            dose = std::max(nanoseconds(static_cast<int64_t>(ns(dose) * part)),
                            std::min(dose, all_.least_dose(target)));
    all_.draw_none();
    all_.epochs().begin();
    choose_doses();
    all_.epochs().end();
    all_.epochs().count_anew();
}

// Of a unit on that host; where it is not known, of one on any.
double Coordinator::period_at(size_t host) const {
    return all_.period_of(host) > 0 ? all_.period_of(host) : all_.period();
}

// Without any delay: is the service as fast there as `before`? If not, others slowed it.
bool Coordinator::is_by_delays(size_t host, double before) {
    const bool has_own = all_.period_of(host) > 0;
    const auto stretch = all_.measure(std::vector<nanoseconds>(document_.targets.size()),
                                      ns(experiment::time_of_check(before)) / 1e9);
    if (!stretch) return false;
    if (stretch->units > 0) all_.follow_periods(*stretch);
    const experiment::Stretch seen =
        has_own ? stretch->hosts[host] : experiment::Stretch{stretch->units, stretch->time};
    if (seen.units == 0) return false;
    return !experiment::slowdown_beyond(request_.experiment.max_slowdown / 2, seen.time,
                                        static_cast<uint64_t>(seen.units), before);
}

// One host's guard ends the delays of all.
void Coordinator::deal_with_guard() {
    const auto [host, why] = *std::exchange(all_.tripped(), std::nullopt);
    all_.epochs().end();
    all_.draw_none(); // what is written ahead, too
    all_.epochs().begin();
    const double before = period_at(host);
    if (!is_by_delays(host, before) || stop()) return;
    if (strikes_.add(monotonic_ns(), before))
        leave_out_largest(all_.hosts().all()[host].name + ": " + why);
}

void Coordinator::note_ticks(uint64_t units) {
    const uint64_t now = monotonic_ns();
    if (units > 0 || last_tick_ns_ == 0) last_tick_ns_ = now;
    const double patience = std::max(ns(kNoTick), kPatienceUnits * all_.period());
    if (static_cast<double>(now - last_tick_ns_) > patience)
        stop() = Stop{"progress point " + document_.progress[0] + " ticks no more", false};
}

void Coordinator::keep(const Combiner& combiner) {
    document_.sliced = combiner.sliced();
    combiner.fill(document_.fleet->hosts);
    tell_of_hosts();
}

void Coordinator::look(const Combiner& combiner) {
    const double measured = static_cast<double>(combiner.sliced().slices()) * slice_s();
    if (measured < shown_s_ + kShownEach) return;
    shown_s_ = measured;
    keep(combiner);
    hooks_.after_block(document_);
    if (measured < next_look_s_) return;
    next_look_s_ = measured * kLookGrowth;
    const double precision = request_.experiment.precision;
    const bool may_be_smaller = may_begin_smaller();
    if (!may_be_smaller && precision <= 0) return;
    const experiment::SlicedLook seen = experiment::look_at_slices(document_, precision);
    wants_smaller_ = may_be_smaller && seen.bends;
    if (wants_smaller_) return forget_measured();
    is_precise_ = precision > 0 && seen.is_precise;
    if (is_precise_) stop() = Stop{"precision", true};
}

void Coordinator::run_trial(Combiner& combiner) {
    const auto play = [&] {
        all_.epochs().draw_by(
            [this](uint64_t slice, const std::vector<bool>& in) { return draw(slice, in); });
        all_.epochs().finish_by([&](uint64_t, const FleetSlice* whole) {
            if (whole != nullptr && combiner.add(*whole))
                note_ticks(combiner.sliced().units[0].back());
        });
    };
    play();
    all_.epochs().begin();
    while (!wants_smaller_ && all_.turn(kTick)) {
        if (all_.tripped()) {
            deal_with_guard(); // which tries what is without delays
            all_.epochs().end();
            play();
            if (!stop() && !wants_smaller_) all_.epochs().begin();
        }
        if (request_.experiment.time.count() > 0 && elapsed() >= request_.experiment.time &&
            !stop())
            stop() = Stop{"time", true};
        // No host tells anything: nothing is finished that could be noted.
        if (!stop()) note_ticks(0);
        if (!stop() && !wants_smaller_) look(combiner);
    }
    all_.epochs().end();
    all_.epochs().finish_by([](uint64_t, const FleetSlice*) {});
    // What was found precise is reported as it was looked at.
    if (!wants_smaller_ && !is_precise_) keep(combiner);
}

void Coordinator::measure_all() {
    begun_ns_ = monotonic_ns();
    all_.epochs().end();
    all_.epochs().count_anew();
    while (!stop()) {
        if (wants_smaller_) begin_smaller();
        Combiner combiner(all_.plan(), all_.hosts().size());
        run_trial(combiner);
    }
}

// What is known of them now.
void Coordinator::tell_of_hosts() {
    experiment::Fleet& fleet = *document_.fleet;
    for (size_t host = 0; host < all_.hosts().size(); ++host) {
        experiment::FleetHost& told = fleet.hosts[host];
        told.lost = all_.epochs().lost()[host];
        if (const auto offset = all_.hosts().all()[host].clock.best()) {
            told.clock_ahead = nanoseconds(offset->ahead);
            told.clock_error = nanoseconds(static_cast<int64_t>(offset->error));
        }
    }
    std::vector<double> apart(all_.epochs().apart().begin(), all_.epochs().apart().end());
    if (apart.empty()) return;
    fleet.most_apart =
        nanoseconds(static_cast<int64_t>(*std::max_element(apart.begin(), apart.end())));
    fleet.apart = nanoseconds(static_cast<int64_t>(median(std::move(apart))));
}

Result<Document> Coordinator::run() {
    if (auto warm = all_.warm_up(); !warm) return std::move(warm).error();
    const uint64_t from = monotonic_ns();
    choose_doses();
    pilot_ = nanoseconds(monotonic_ns() - from);
    measure_all();
    if (!document_.sliced) { // whose hosts these are
        document_.fleet.reset();
        for (experiment::Target& target : document_.targets) target.host.reset();
    }
    for (const Host& host : all_.hosts().all())
        if (const uint64_t out = host.failed ? 0 : host.out_so_far(monotonic_ns()); out > 0)
            all_.warn(fmt::format("{}: for {:.1f} s it did not answer, and was no part of it",
                                  host.name, static_cast<double>(out) / 1e9));
    document_.stopped = stop()->reason;
    document_.complete = stop()->planned;
    return document_;
}

} // namespace

Result<Document> run_fleet(const FleetRequest& request, const experiment::Hooks& hooks) {
    auto hosts = gather(request, hooks);
    if (!hosts) return std::move(hosts).error();
    return Coordinator(request, hooks, **hosts).run();
}

} // namespace speedbump::fleet
