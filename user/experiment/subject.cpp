// SPDX-License-Identifier: MIT
#include "experiment/subject.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "experiment/host.h"
#include "experiment/pace.h"
#include "experiment/thresholds.h"
#include "targets/parser.h"
#include "util/clock.h"
#include "util/numbers.h"

namespace speedbump::experiment {

namespace {

using std::chrono::milliseconds;

constexpr auto kUsualGuardTick = milliseconds(100);
constexpr auto kPolledGuardTick = milliseconds(500); // where a look is a process or a request
// A delay that nobody takes back ends by itself this long after its slice.
constexpr auto kDeadMan = std::chrono::seconds(2);
constexpr auto kNoTick = std::chrono::seconds(5);
constexpr double kPatienceUnits = 20;
constexpr auto kLongestWarmUp = std::chrono::seconds(10);
constexpr auto kWarmUpSlice = milliseconds(250);
constexpr double kUnitsPerSlice = 100;
constexpr auto kShortestSlice = milliseconds(200);
constexpr auto kLongestSlice = std::chrono::seconds(3);
constexpr double kFewestUnits = 8; // of a slice, however slow the service is
constexpr int kPilotSteps = 8;
constexpr size_t kShownFunctions = 20;
constexpr size_t kSpares = 128; // groups of Python functions that are counted at a time
constexpr int kMaxBadReadings = 3;
constexpr int kMaxStrikes = 2; // of a guard against one dose: other load comes and goes

// Lines that name no function until the session regroups some as theirs.
void add_spare_lines(targets::TargetsFile& file) {
    for (size_t spare = 1; spare <= kSpares; ++spare) {
        targets::TargetLine line;
        line.container.text = line.name.text = fmt::format("<group-{}>", spare);
        line.original = line.container.text + ":" + line.name.text;
        line.options.delay = nanoseconds(0);
        file.lines.push_back(std::move(line));
    }
}

// One target of two lines.
void join(Target& all, Target target) {
    all.name += " " + target.name;
    all.function_count += target.function_count;
    for (std::string& function : target.functions)
        if (all.functions.size() < kShownFunctions) all.functions.push_back(std::move(function));
    for (std::string& note : target.notes) all.notes.push_back(std::move(note));
}

double period_of(const Slice& slice) {
    return ns(slice.progress_time[0]) / static_cast<double>(slice.progress[0]);
}

} // namespace

Result<void> Subject::attach(uint32_t columns) {
    targets::TargetsFile file = request_.file;
    for (targets::TargetLine& line : file.lines) {
        line.options.delay = nanoseconds(0);
        line.options.start.reset();
        line.options.duration.reset();
        has_python_ |= line.runtime == targets::Runtime::kPython && !line.exclude;
    }
    auto lines = add_progress_lines(request_, file);
    if (!lines) return std::move(lines).error();
    progress_lines_ = std::move(*lines);
    const size_t first_spare = file.lines.size();
    if (request_.bisect && has_python_) add_spare_lines(file);
    session::SessionOptions options = request_.session;
    // The kernel module can't take its probes out at once.
    if (options.engine != session::EngineChoice::kInprocess)
        options.engine = session::EngineChoice::kBpf;
    options.columns = columns;
    const auto told = [this](const std::string& text) { warn(text); };
    auto session = session::Session::attach(options, file, told);
    if (!session) return std::move(session).error();
    session_ = std::move(*session);
    const std::vector<session::Target> known = session_->snapshot().targets;
    for (uint32_t index = 0; index < known.size(); ++index)
        if (known[index].runtime == targets::Runtime::kPython &&
            known[index].line_index >= first_spare)
            spares_.push_back({known[index].line_index, index});
    auto counted = find_progress_targets(request_, progress_lines_, *session_, told);
    if (!counted) return std::move(counted).error();
    target_progress_ = std::move(*counted);
    auto points = open_progress(request_.progress, target_progress_, *session_, told);
    if (!points) return std::move(points).error();
    points_ = std::move(*points);
    bad_readings_.resize(points_.size());
    lost_.resize(points_.size());
    guard_tick_ = kUsualGuardTick;
    for (const ProgressSpec& spec : request_.progress)
        if (spec.kind == ProgressSpec::Kind::kCommand || spec.kind == ProgressSpec::Kind::kHttp)
            guard_tick_ = kPolledGuardTick;
    session_->arm();
    for (const session::ProcessInfo& process : session_->processes())
        if (process.alive) pids_.push_back(process.pid);
    return {};
}

Result<void> Subject::find_targets() {
    const session::Snapshot snapshot = session_->snapshot();
    document_.engine = snapshot.engine;
    std::map<targets::Runtime, size_t> whole; // the target of all lines
    for (size_t line = 0; line < request_.file.lines.size(); ++line) {
        const targets::TargetLine& target_line = request_.file.lines[line];
        if (target_line.exclude) continue;
        Target target;
        target.name = target_line.original;
        const auto& positive = request_.positive_lines;
        if (std::find(positive.begin(), positive.end(), line) != positive.end())
            target.role = Role::kPositive;
        std::vector<uint32_t> group;
        for (uint32_t index = 0; index < snapshot.targets.size(); ++index) {
            const session::Target& found = snapshot.targets[index];
            if (found.line_index != line) continue;
            group.push_back(index);
            if (found.runtime == targets::Runtime::kPython) {
                for (const engine::PythonMatch& match : snapshot.python_matches)
                    if (match.line == line)
                        target.functions.push_back(match.module + ":" + match.name);
                std::sort(target.functions.begin(), target.functions.end());
                target.functions.erase(
                    std::unique(target.functions.begin(), target.functions.end()),
                    target.functions.end());
            } else {
                target.functions.push_back(found.container + ":" + found.name);
            }
        }
        target.function_count = target.functions.size();
        if (target.functions.size() > kShownFunctions) target.functions.resize(kShownFunctions);
        if (target.function_count == 0) target.notes.push_back("names nothing in the processes");
        if (request_.whole.contains(target_line.runtime) && target.role == Role::kTarget) {
            const auto [first, is_new] =
                whole.try_emplace(target_line.runtime, document_.targets.size());
            if (!is_new) {
                join(document_.targets[first->second], std::move(target));
                groups_[first->second].insert(groups_[first->second].end(), group.begin(),
                                              group.end());
                continue;
            }
        }
        document_.targets.push_back(std::move(target));
        groups_.push_back(std::move(group));
    }
    // A jump that counts progress alone is no target.
    const bool has_native = std::any_of(groups_.begin(), groups_.end(), [&](const Members& group) {
        return std::any_of(group.begin(), group.end(), [&](uint32_t index) {
            return snapshot.targets[index].runtime == targets::Runtime::kNative;
        });
    });
    const bool has_nothing =
        snapshot.nothing_matched ||
        (progress_lines_.has_jumps && !has_native && snapshot.python_matches.empty());
    if (has_nothing && snapshot.hook_failure) return *snapshot.hook_failure;
    if (has_nothing || document_.targets.empty())
        return make_error(ErrorKind::kNothingMatched, "no target matched anything");
    return {};
}

Result<void> Subject::warm_up() {
    const uint64_t begin = monotonic_ns();
    SettlingPace pace;
    for (;;) {
        const auto slice = measure({ArmKind::kProbe, 0, {}}, kWarmUpSlice);
        if (stop_)
            return make_error(ErrorKind::kIo,
                              "nothing was measured before the experiment ended: " + stop_->reason);
        if (slice) pace.add(ns(slice->progress_time[0]), slice->progress[0]);
        const nanoseconds waited(monotonic_ns() - begin);
        if (!pace.has_ticked() && waited >= kNoTick)
            return make_error(ErrorKind::kTimeout,
                              "progress point " + request_.progress[0].text +
                                  " did not tick within 5 s: nothing was measured")
                .with_hint("give the service some load, or another --progress");
        if (pace.is_steady()) break;
        if (waited >= kLongestWarmUp) {
            document_.warnings.push_back("the pace of " + request_.progress[0].text +
                                         " did not settle within 10 s");
            break;
        }
    }
    period_ = pace.period();
    const auto units = [this](double count) {
        return nanoseconds(static_cast<int64_t>(period_ * count));
    };
    arm_length_ =
        std::clamp<nanoseconds>(units(kUnitsPerSlice), kShortestSlice,
                                std::max<nanoseconds>(kLongestSlice, units(kFewestUnits)));
    nanoseconds& slice = document_.settings.slice;
    if (slice.count() == 0) slice = arm_length_;
    if (slice > kLongestSwitched) arm_length_ = slice;
    return {};
}

std::optional<Slice> Subject::measure_plain(nanoseconds least) {
    auto plain = measure({ArmKind::kProbe, 0, {}}, std::max(least, arm_length_));
    if (plain && plain->progress[0] == 0) return std::nullopt;
    return plain;
}

std::optional<nanoseconds> Subject::dose_of(size_t target, const Slice& plain, double share,
                                            nanoseconds least) {
    Target& described = document_.targets[target];
    const double calls = static_cast<double>(plain.calls[target]);
    if (calls == 0) {
        described.notes.push_back("was not called");
        return std::nullopt;
    }
    const double calls_per_unit = calls / static_cast<double>(plain.progress[0]);
    return nanoseconds(static_cast<int64_t>(std::clamp(share * period_of(plain) / calls_per_unit,
                                                       ns(least), ns(targets::kMaxDelay) / 1000)));
}

std::optional<nanoseconds> Subject::find_dose(size_t target, const Slice& plain, double seen,
                                              double first, double largest) {
    hooks_.say("choosing the delays of " + document_.targets[target].name);
    const auto least = dose_of(target, plain, first, least_dose(target));
    if (!least) return std::nullopt;
    nanoseconds delay = *least;
    const double period = period_of(plain);
    for (int step = 0; step < kPilotSteps && !stop_; ++step) {
        const auto slice = measure({ArmKind::kDose, target, delay}, arm_length_);
        if (!slice) { // a guard
            delay /= 2;
            break;
        }
        if (slice->progress[0] == 0) break;
        const double slowed = period_of(*slice) / period - 1;
        const double share = ns(slice->injected) / static_cast<double>(slice->progress[0]) / period;
        if (slowed >= seen || share >= largest) break;
        if (delay * 2 > targets::kMaxDelay) break;
        delay *= 2;
    }
    return delay;
}

nanoseconds Subject::least_dose(size_t target) const {
    return 2 * session_->floor(groups_[target].front()) + std::chrono::microseconds(1);
}

// Now, and in the document.
void Subject::warn(const std::string& text) {
    document_.warnings.push_back(text);
    hooks_.warn(text);
}

void Subject::warn_all(const std::vector<std::string>& warnings) {
    for (const std::string& text : warnings) warn(text);
}

// --- one slice

void Subject::wait(nanoseconds time) {
    const uint64_t end = monotonic_ns() + static_cast<uint64_t>(time.count());
    while (!stop_) {
        if (is_interrupted()) return;
        const uint64_t now = monotonic_ns();
        if (now >= end) return;
        const auto left = std::chrono::ceil<milliseconds>(nanoseconds(end - now));
        note_ran(session_->run_for(left, hooks_.wake_fd));
    }
}

bool Subject::is_interrupted() {
    if (!hooks_.stop_asked()) return false;
    stop_ = Stop{"interrupted", false};
    return true;
}

void Subject::note_ran(const Result<void>& ran) {
    if (ran) return;
    const bool ended = ran.error().kind == ErrorKind::kNotFound;
    stop_ = Stop{ended ? "the processes ended" : ran.error().message, false};
}

// From one reading to the next: nobody may have looked for long before a slice without a tick.
void Subject::note_tick(const Readings& now) {
    const uint64_t units = now.progress[0].units;
    last_read_ns_ = now.at_ns;
    if (units == last_units_ && last_tick_ns_ != 0) return;
    last_units_ = units;
    last_tick_ns_ = now.at_ns;
}

void Subject::end_if_silent() {
    const double patience = std::max(ns(kNoTick), kPatienceUnits * period_);
    if (period_ <= 0 || static_cast<double>(last_read_ns_ - last_tick_ns_) <= patience) return;
    note_ran(session_->run_for(milliseconds(0), hooks_.wake_fd)); // it may have ended
    if (!stop_)
        stop_ = Stop{"progress point " + request_.progress[0].text + " ticks no more", false};
}

Totals Subject::read_totals() {
    auto totals = session_->totals();
    if (!totals) {
        stop_ = Stop{"the calls cannot be counted: " + totals.error().message, false};
        return {};
    }
    return {std::move(*totals), monotonic_ns()};
}

std::vector<Injected> Subject::injected_by(const Totals& totals) const {
    std::vector<Injected> result(groups_.size());
    if (totals.targets.empty()) return result;
    for (size_t target = 0; target < groups_.size(); ++target)
        for (const uint32_t index : groups_[target]) {
            const engine::Counts& counts = totals.targets[index];
            result[target].calls += counts.hits;
            result[target].took += counts.measured;
            // Against a probe without delay, which costs its floor too.
            result[target].time +=
                counts.measured - session_->floor(index) * static_cast<int64_t>(counts.delays);
        }
    return result;
}

Subject::Readings Subject::read(bool is_bound) {
    Readings readings;
    const Totals totals = read_totals();
    for (size_t point = 0; point < points_.size(); ++point) {
        auto reading = points_[point]->read(totals);
        if (!reading) {
            note_bad_reading(point, reading.error().message);
            reading = point < last_.size() ? last_[point] : Reading{0, monotonic_ns()};
        }
        readings.progress.push_back(*reading);
        readings.latencies.push_back(is_bound ? points_[point]->latencies()
                                              : std::vector<uint64_t>());
        readings.devices.push_back(points_[point]->device());
        // Looked at all the time: it makes room again where none is left.
        lost_[point] = points_[point]->lost();
    }
    last_ = readings.progress;
    readings.targets = injected_by(totals);
    if (is_bound) readings.waits = read_waits(pids_);
    readings.at_ns = monotonic_ns();
    note_tick(readings);
    return readings;
}

void Subject::note_bad_reading(size_t point, const std::string& what) {
    const std::string& name = request_.progress[point].text;
    if (++bad_readings_[point] == 1) {
        document_.warnings.push_back(name + ": " + what);
        hooks_.warn(document_.warnings.back());
    }
    if (bad_readings_[point] >= kMaxBadReadings)
        stop_ = Stop{"progress point " + name + " cannot be used: " + what, false};
}

void Subject::apply(const Arm& arm, nanoseconds length) {
    std::vector<nanoseconds> delays;
    if (arm.kind == ArmKind::kDose)
        for (const uint32_t index : groups_[arm.target]) {
            if (delays.size() <= index) delays.resize(index + 1);
            delays[index] = arm.delay;
        }
    const nanoseconds lifetime = document_.settings.settle + length + kDeadMan;
    session_->apply(delays, monotonic_ns() + static_cast<uint64_t>(lifetime.count()));
    const bool out = arm.kind == ArmKind::kOff;
    if (out == is_out_) return;
    is_out_ = out;
    if (out) {
        std::set<size_t> lines;
        for (const auto& [point, line] : progress_lines_.lines) lines.insert(line);
        session_->take_out(!lines.empty(), lines);
    } else if (auto put = session_->put_back(); !put) {
        stop_ = Stop{"the probes cannot be put back: " + put.error().message, false};
    }
}

// Why a slice must end at once, if it must.
std::optional<std::string> Subject::guard(const Arm& arm, const Readings& before) {
    const Readings now = read(false);
    const double took = static_cast<double>(now.at_ns - before.at_ns);
    const uint64_t units = now.progress[0].units - before.progress[0].units;
    if (arm.kind != ArmKind::kDose) return std::nullopt;
    const double cpus = ns(now.targets[arm.target].time - before.targets[arm.target].time) / took;
    if (cpus > document_.settings.max_cpu)
        return fmt::format("it took {:.2f} CPUs, more than --max-cpu {:.2f}", cpus,
                           document_.settings.max_cpu);
    if (const auto slowdown = slowdown_beyond(request_.max_slowdown, took, units, period_))
        return fmt::format("it slowed the service by {:.0f}%, more than --max-slowdown {:.0f}%",
                           *slowdown * 100, request_.max_slowdown * 100);
    return std::nullopt;
}

void Subject::give_up_dose(const Arm& arm, const std::string& why) {
    if (++strikes_[{arm.target, arm.delay.count()}] < kMaxStrikes) return;
    Target& target = document_.targets[arm.target];
    std::erase_if(target.doses, [&](nanoseconds dose) { return dose >= arm.delay; });
    target.notes.push_back("delay " + targets::format_duration(arm.delay) +
                           " was given up: " + why);
    hooks_.warn(target.name + ": " + target.notes.back());
}

Slice Subject::between(const Arm& arm, const Readings& before, const Readings& after) const {
    Slice slice;
    slice.arm = arm;
    slice.start = nanoseconds(before.at_ns - std::min(begun_ns_, before.at_ns));
    slice.length = nanoseconds(after.at_ns - before.at_ns);
    slice.device.resize(points_.size());
    for (size_t point = 0; point < points_.size(); ++point) {
        const Reading& from = before.progress[point];
        const Reading& to = after.progress[point];
        slice.progress.push_back(to.units > from.units ? to.units - from.units : 0);
        slice.progress_time.emplace_back(to.at_ns - from.at_ns);
        slice.latency.push_back(latency_between(before.latencies[point], after.latencies[point]));
        if (const auto& from_device = before.devices[point])
            slice.device[point] = device_between(*from_device, *after.devices[point]);
    }
    slice.waited = std::max(nanoseconds(0), waited_between(before.waits, after.waits));
    if (arm.kind == ArmKind::kOff) return slice;
    for (size_t target = 0; target < groups_.size(); ++target)
        slice.calls.push_back(after.targets[target].calls - before.targets[target].calls);
    if (arm.kind == ArmKind::kDose)
        slice.injected = std::max(nanoseconds(0),
                                  after.targets[arm.target].time - before.targets[arm.target].time);
    return slice;
}

bool Subject::watch(const Arm& arm, const Readings& from, nanoseconds time) {
    const uint64_t end = from.at_ns + static_cast<uint64_t>(time.count());
    for (uint64_t now = from.at_ns; now < end; now = monotonic_ns()) {
        wait(std::min<nanoseconds>(guard_tick_, nanoseconds(end - now)));
        if (stop_) return false;
        if (const auto why = guard(arm, from)) {
            if (is_slow_by_delays()) give_up_dose(arm, *why);
            return false;
        }
    }
    return true;
}

bool Subject::is_slow_by_delays() {
    const double before = period_;
    const auto slice = measure({ArmKind::kProbe, 0, {}}, time_of_check(before));
    if (!slice || slice->progress[0] == 0) return false;
    follow_period(*slice);
    return !slowdown_beyond(request_.max_slowdown / 2, ns(slice->progress_time[0]),
                            slice->progress[0], before);
}

// nullopt when the slice was given up.
std::optional<Slice> Subject::measure(const Arm& arm, nanoseconds length) {
    apply(arm, length);
    if (document_.settings.settle <= guard_tick_)
        wait(document_.settings.settle);
    else if (!watch(arm, read(false), document_.settings.settle))
        return std::nullopt;
    if (stop_) return std::nullopt;
    const Readings before = read(true);
    if (!watch(arm, before, length)) return std::nullopt;
    const Readings after = read(true);
    if (stop_) return std::nullopt; // something could not be read
    for (size_t point = 0; point < points_.size(); ++point)
        if (after.progress[point].units < before.progress[point].units) {
            note_bad_reading(point, "its running total went backwards");
            return std::nullopt;
        }
    end_if_silent();
    return between(arm, before, after);
}

void Subject::follow_period(const Slice& slice) {
    if (period_ <= 0 || slice.progress[0] == 0) return;
    const double latest = ns(slice.progress_time[0]) / static_cast<double>(slice.progress[0]);
    period_ = std::min(period_ + 0.2 * (latest - period_), kMostSlowerAtOnce * period_);
}

void Subject::regroup(std::vector<Target> targets, std::vector<std::vector<uint32_t>> groups) {
    apply({ArmKind::kProbe, 0, {}}, nanoseconds(0)); // the old groups' last delays
    document_.targets = std::move(targets);
    document_.blocks.clear();
    groups_ = std::move(groups);
    strikes_.clear();
}

void Subject::end() {
    apply({ArmKind::kProbe, 0, {}}, nanoseconds(0));
    session_->pause();
    for (size_t point = 0; point < points_.size(); ++point)
        if (lost_[point] > 0)
            warn(fmt::format("{}: {} calls could not be timed", request_.progress[point].text,
                             lost_[point]));
}

} // namespace speedbump::experiment
