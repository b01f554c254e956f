// SPDX-License-Identifier: MIT
#include "fleet/ensemble.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "experiment/thresholds.h"
#include "util/clock.h"

namespace speedbump::fleet {

namespace {

using experiment::Stop;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kTick = milliseconds(10);
constexpr auto kWindow = milliseconds(250); // of a pace
constexpr double kKnownUnits = 20;          // that a period is worth which was measured before
constexpr auto kNoTick = seconds(5);
constexpr auto kLongestWarmUp = seconds(15);

} // namespace

Ensemble::Ensemble(const FleetRequest& request, const experiment::Hooks& hooks, Hosts& hosts,
                   experiment::Document& document)
    : request_(request),
      hooks_(hooks),
      hosts_(hosts),
      document_(document),
      functions_(functions_of(hosts)),
      epochs_(hosts, request.experiment.slice, request.progress.size()) {
    prepare();
    listen();
    draw_none();
    epochs_.begin();
}

void Ensemble::draw_none() {
    epochs_.draw_by([this](uint64_t, const std::vector<bool>&) {
        const size_t targets = document_.targets.size();
        return Draw{std::vector<Step>(targets), rows_of(std::vector<nanoseconds>(targets))};
    });
    epochs_.finish_by([](uint64_t, const FleetSlice*) {});
}

void Ensemble::warn(const std::string& text) {
    document_.warnings.push_back(text);
    hooks_.warn(text);
}

void Ensemble::prepare() {
    const experiment::Request& request = request_.experiment;
    document_.seed = request.seed;
    document_.engine = "bpf"; // of each agent
    document_.started_unix_ns =
        std::chrono::duration_cast<nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
            .count();
    document_.settings = {request.slice, nanoseconds(0), request.precision, request.max_slowdown,
                          request.max_cpu};
    for (const experiment::ProgressSpec& spec : request.progress)
        document_.progress.push_back(spec.text);
    document_.targets = targets_of(request_, hosts_);
    experiment::Fleet& fleet = document_.fleet.emplace();
    fleet.each = request_.each;
    for (const Combination& one : request_.progress) fleet.progress.push_back(to_string(one));
    for (const Host& host : hosts_.all()) {
        experiment::FleetHost& told = fleet.hosts.emplace_back();
        told.name = host.name;
        told.launch = host.launch;
        told.version = host.hello->version;
        told.kernel = host.hello->kernel;
        told.machine = host.hello->machine;
    }
    told_of_.resize(hosts_.size());
    host_periods_.resize(hosts_.size());
    plain_ = nothing();
}

void Ensemble::listen() {
    Listener listener;
    listener.warn = [this](const std::string& text) { warn(text); };
    listener.taken = [this](size_t host, Taken taken) { epochs_.take(host, std::move(taken)); };
    listener.late = [this](size_t host, const Late& late) { epochs_.note_late(host, late); };
    listener.changed = [this](size_t host) { epochs_.note_change(host); };
    listener.tripped = [this](size_t host, const Tripped& tripped) {
        if (tripped.epoch == epochs_.epoch()) tripped_ = {host, tripped.why};
    };
    hosts_.listen(std::move(listener));
}

// Hosts that have ended, or whose progress is all there is.
void Ensemble::check_hosts() {
    size_t left = 0;
    for (size_t host = 0; host < hosts_.size(); ++host) {
        const Host& one = hosts_.all()[host];
        if (!one.failed) {
            ++left;
            continue;
        }
        if (told_of_[host]) continue;
        told_of_[host] = true;
        document_.fleet->hosts[host].ended = one.failed->message;
        warn(one.name + ": it has ended, and the others go on without it: " + one.failed->message);
        for (const Combination& progress : request_.progress)
            if (progress.kind == Combination::Kind::kAt && progress.host == host)
                stop_ = Stop{
                    one.name + ", whose progress counts, has ended: " + one.failed->message, false};
    }
    if (left == 0 && !stop_) stop_ = Stop{"all hosts have ended", false};
}

bool Ensemble::turn(nanoseconds time) {
    const uint64_t end = monotonic_ns() + static_cast<uint64_t>(time.count());
    while (!stop_) {
        if (hooks_.stop_asked()) stop_ = Stop{"interrupted", false};
        epochs_.tick();
        check_hosts();
        const uint64_t now = monotonic_ns();
        if (now >= end || tripped_) break;
        hosts_.run_until([] { return false; }, std::min<nanoseconds>(kTick, nanoseconds(end - now)),
                         hooks_.wake_fd);
    }
    return !stop_.has_value();
}

Plan Ensemble::plan() const {
    Plan plan;
    plan.slice = request_.experiment.slice;
    plan.functions = functions_;
    plan.each = request_.each;
    plan.progress = request_.progress;
    for (const experiment::Target& target : document_.targets)
        plan.doses.push_back(target.doses.empty() ? nanoseconds(0) : target.doses[0]);
    return plan;
}

std::vector<std::vector<nanoseconds>> Ensemble::rows_of(
    const std::vector<nanoseconds>& doses) const {
    const Plan plan = this->plan();
    std::vector<std::vector<nanoseconds>> rows(hosts_.size());
    for (size_t host = 0; host < hosts_.size(); ++host)
        for (size_t function = 0; function < functions_; ++function)
            rows[host].push_back(doses[plan.target_of(function, host, hosts_.size())]);
    return rows;
}

Ensemble::Stretch& Ensemble::Stretch::operator+=(const Stretch& more) {
    slices += more.slices;
    time += more.time;
    units += more.units;
    for (size_t target = 0; target < calls.size(); ++target) {
        calls[target] += more.calls[target];
        injected[target] += more.injected[target];
    }
    for (size_t host = 0; host < hosts.size(); ++host) {
        hosts[host].units += more.hosts[host].units;
        hosts[host].time += more.hosts[host].time;
    }
    return *this;
}

Ensemble::Stretch Ensemble::nothing() const {
    Stretch stretch;
    stretch.calls.resize(document_.targets.size());
    stretch.injected.resize(document_.targets.size());
    stretch.hosts.resize(hosts_.size());
    return stretch;
}

void Ensemble::add(Stretch& stretch, const FleetSlice& slice, Combiner& combiner) const {
    if (!combiner.add(slice)) return;
    const Plan plan = this->plan();
    ++stretch.slices;
    stretch.time += ns(request_.experiment.slice);
    stretch.units += static_cast<double>(combiner.sliced().units[0].back());
    for (size_t host = 0; host < hosts_.size(); ++host)
        if (slice.hosts[host]) {
            stretch.hosts[host].units += static_cast<double>(slice.hosts[host]->points[0].units);
            stretch.hosts[host].time += ns(request_.experiment.slice);
        }
    for (size_t target = 0; target < document_.targets.size(); ++target) {
        stretch.injected[target] +=
            static_cast<double>(combiner.sliced().targets[target].injected_ns.back());
        for (size_t host = 0; host < hosts_.size(); ++host)
            for (size_t function = 0; slice.hosts[host] && function < functions_; ++function)
                if (plan.target_of(function, host, hosts_.size()) == target)
                    stretch.calls[target] +=
                        static_cast<double>(slice.hosts[host]->targets[function].calls) /
                        (request_.each ? 1 : static_cast<double>(hosts_.size()));
    }
}

// Nobody has a delay before and behind. nullopt when it has come to an end, or a guard ended it.
std::optional<Ensemble::Stretch> Ensemble::measure(const std::vector<nanoseconds>& doses,
                                                   double seconds) {
    const size_t targets = document_.targets.size();
    Stretch stretch = nothing();
    Combiner combiner(plan(), hosts_.size());
    const uint64_t from = epochs_.written();
    const uint64_t until =
        from + static_cast<uint64_t>(std::ceil(seconds * 1e9 / ns(request_.experiment.slice)));
    bool is_over = false;
    const auto none = rows_of(std::vector<nanoseconds>(targets));
    epochs_.draw_by([&, steps = std::vector<Step>(targets), rows = rows_of(doses)](
                        uint64_t slice, const std::vector<bool>&) {
        return Draw{steps, slice >= from && slice < until ? rows : none};
    });
    epochs_.finish_by([&](uint64_t slice, const FleetSlice* whole) {
        if (whole != nullptr && slice >= from && slice < until) add(stretch, *whole, combiner);
        is_over |= slice + 1 >= until;
    });
    while (!is_over && !tripped_ && turn(kTick)) {
    }
    draw_none();
    if (std::exchange(tripped_, std::nullopt)) {
        epochs_.end();
        epochs_.begin();
        return std::nullopt;
    }
    if (stop_) return std::nullopt;
    return stretch;
}

// The slices that end within so long, without delay: from one call to the next none is left out,
// else a service that is slow or regular would be seen where it does nothing, or too much.
Ensemble::Stretch Ensemble::watch_plain(Combiner& combiner, nanoseconds time) {
    Stretch stretch = nothing();
    epochs_.finish_by([&](uint64_t, const FleetSlice* whole) {
        if (whole != nullptr) add(stretch, *whole, combiner);
    });
    turn(time);
    epochs_.finish_by([](uint64_t, const FleetSlice*) {});
    if (std::exchange(tripped_, std::nullopt)) {
        epochs_.end();
        epochs_.begin();
    }
    return stretch;
}

// Whether there is nothing to wait for that a host may tell of its own pace.
bool Ensemble::is_known(size_t host, const experiment::SettlingPace& pace) const {
    const Host& one = hosts_.all()[host];
    const bool has_point = std::ranges::find(one.points, size_t{0}) != one.points.end();
    return one.failed || !has_point || pace.has_stretch() ||
           (!pace.has_ticked() && plain_.time >= ns(kNoTick));
}

Result<void> Ensemble::warm_up() {
    hooks_.say("waiting for a steady pace");
    const uint64_t begin = monotonic_ns();
    Combiner combiner(plan(), hosts_.size());
    experiment::SettlingPace pace;
    std::vector<experiment::SettlingPace> host_paces(hosts_.size());
    bool was_steady = false, are_known = false;
    while (!was_steady || !are_known) {
        const Stretch window = watch_plain(combiner, kWindow);
        if (stop_)
            return make_error(ErrorKind::kIo,
                              "nothing was measured before the experiment ended: " + stop_->reason);
        const nanoseconds waited(monotonic_ns() - begin);
        plain_ += window;
        pace.add(window.time, static_cast<uint64_t>(window.units));
        was_steady |= pace.is_steady();
        are_known = true;
        for (size_t host = 0; host < hosts_.size(); ++host) {
            const experiment::Stretch& own = window.hosts[host];
            host_paces[host].add(own.time, static_cast<uint64_t>(own.units));
            are_known &= is_known(host, host_paces[host]);
        }
        if (plain_.slices == 0 && waited >= kLongestWarmUp)
            return make_error(ErrorKind::kTimeout,
                              "of no slice within 15 s came what all hosts counted: they, or the "
                              "links to them, are too busy")
                .with_hint("longer slices: --slice=50ms");
        if (!pace.has_ticked() && (plain_.time >= ns(kNoTick) || waited >= kLongestWarmUp))
            return make_error(ErrorKind::kTimeout, "progress point " + document_.progress[0] +
                                                       " did not tick within 5 s on any host: "
                                                       "nothing was measured")
                .with_hint("give the service some load, or another --progress");
        if (waited < kLongestWarmUp) continue;
        if (!was_steady)
            warn("the pace of " + document_.progress[0] + " did not settle within 15 s");
        break;
    }
    period_ = pace.period();
    for (size_t host = 0; host < hosts_.size(); ++host)
        if (host_paces[host].has_ticked()) host_periods_[host] = host_paces[host].period();
    tell_periods();
    epochs_.end(); // the agents hear of their periods when an epoch begins
    epochs_.begin();
    return {};
}

void Ensemble::tell_periods() {
    std::vector<nanoseconds> periods;
    for (const double period : host_periods_) periods.emplace_back(static_cast<int64_t>(period));
    epochs_.set_periods(std::move(periods));
}

void Ensemble::measure_plain(double seconds) {
    if (const auto more = measure(std::vector<nanoseconds>(document_.targets.size()), seconds))
        plain_ += *more;
}

void Ensemble::follow_periods(const Stretch& latest) {
    // By as much as there was to see: one that is short tells little, and no unit is a slow one.
    const auto follow = [](double& period, double time, double units) {
        if (period > 0)
            period = std::min((kKnownUnits * period + time) / (kKnownUnits + units),
                              experiment::kMostSlowerAtOnce * period);
    };
    follow(period_, latest.time, latest.units);
    for (size_t host = 0; host < hosts_.size(); ++host)
        follow(host_periods_[host], latest.hosts[host].time, latest.hosts[host].units);
    tell_periods();
}

nanoseconds Ensemble::least_dose(size_t target) const {
    const Plan plan = this->plan();
    nanoseconds least{0};
    for (size_t host = 0; host < hosts_.size(); ++host)
        for (size_t function = 0; function < functions_; ++function)
            if (plan.target_of(function, host, hosts_.size()) == target)
                least = std::max(least, hosts_.all()[host].attached->targets[function].least);
    return least;
}

} // namespace speedbump::fleet
