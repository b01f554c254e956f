// SPDX-License-Identifier: MIT
#include "experiment/runner.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "experiment/analysis.h"
#include "experiment/host.h"
#include "experiment/plan.h"
#include "experiment/progress.h"
#include "session/session.h"
#include "targets/parser.h"
#include "util/clock.h"
#include "util/numbers.h"

namespace speedbump::experiment {

namespace {

using std::chrono::milliseconds;

constexpr auto kGuardTick = milliseconds(100);
constexpr auto kPolledGuardTick = milliseconds(500); // where a look is a process or a request
// A delay that nobody takes back ends by itself this long after its slice.
constexpr auto kDeadMan = std::chrono::seconds(2);
constexpr auto kNoTick = std::chrono::seconds(5);
constexpr auto kLongestWarmUp = std::chrono::seconds(10);
constexpr auto kWarmUpSlice = milliseconds(250);
constexpr double kSteady = 0.1; // spread of three slices in a row
constexpr double kUnitsPerSlice = 100;
constexpr auto kShortestSlice = milliseconds(200);
constexpr auto kLongestSlice = std::chrono::seconds(3);
constexpr size_t kFewestBlocks = 6; // before an interval is believed
// Doses are raised until one of these: a slowdown that is easily seen, or twice the period.
constexpr double kSeenSlowdown = 0.2, kLargestShare = 2;
constexpr int kPilotSteps = 8;
constexpr size_t kOffEachBlocksOfPython = 4; // unhooking an interpreter is no small matter
constexpr size_t kConfirmed = 3;             // the top targets
constexpr double kConfirmShare = 0.25;       // of --time
constexpr size_t kShownFunctions = 20;
constexpr size_t kBisectParts = 4, kBisectKept = 3, kBisectBlocks = 8, kBisectLevels = 12;
constexpr int kMaxBadReadings = 3;
constexpr int kMaxStrikes = 2; // of a guard against one dose: other load comes and goes

double ns(nanoseconds time) {
    return static_cast<double>(time.count());
}

// What ends the blocks; a reason for Document::stopped.
struct Stop {
    std::string reason;
    bool planned = false;
};

struct Injected {
    nanoseconds time{0};
    uint64_t calls = 0;
};

class Runner {
  public:
    Runner(const Request& request, const Hooks& hooks) : request_(request), hooks_(hooks) {}

    Result<Document> run();

  private:
    // --- beginning
    Result<void> attach();
    Result<void> find_targets();
    Result<void> warm_up();
    void choose_doses(size_t target);

    // --- one slice
    struct Readings {
        std::vector<Reading> progress;
        std::vector<std::vector<uint64_t>> latencies;
        std::vector<Injected> targets;
        std::map<pid_t, nanoseconds> waits;
        uint64_t at_ns = 0;
    };
    Readings read(bool is_bound); // of a slice, or only a look within one
    std::vector<Injected> read_targets();
    void apply(const Arm& arm, nanoseconds length);
    void wait(nanoseconds time);
    std::optional<Slice> measure(const Arm& arm, nanoseconds length);
    Slice between(const Arm& arm, const Readings& before, const Readings& after) const;
    std::optional<std::string> guard(const Arm& arm, const Readings& before);
    void give_up_dose(const Arm& arm, const std::string& why);
    void note_bad_reading(size_t point, const std::string& what);
    void warn(const std::string& text);
    void warn_all(const std::vector<std::string>& warnings);

    // --- blocks
    void run_block(const std::vector<size_t>& targets, bool confirms);
    void run_blocks();
    void confirm();
    void bisect();
    bool is_over(nanoseconds limit);
    std::vector<size_t> all_targets() const;
    nanoseconds elapsed() const { return nanoseconds(monotonic_ns() - begun_ns_); }

    const Request& request_;
    const Hooks& hooks_;
    Document document_;
    std::vector<std::vector<uint32_t>> groups_; // session targets of each of the document's
    std::vector<PythonProgress> python_progress_;
    std::unique_ptr<session::Session> session_;
    std::vector<std::unique_ptr<ProgressPoint>> points_; // after the session
    std::vector<pid_t> pids_;                            // when it began
    std::vector<Reading> last_;
    std::vector<int> bad_readings_;
    std::vector<uint64_t> lost_;                        // calls that each point could not time
    std::map<std::pair<size_t, int64_t>, int> strikes_; // of a guard, by target and delay
    std::optional<Stop> stop_;
    uint64_t armed_ns_ = 0;
    uint64_t begun_ns_ = 0; // of the first block
    uint64_t last_tick_ns_ = 0;
    double period_ = 0; // of the first progress point, without delay
    milliseconds guard_tick_ = kGuardTick;
    bool has_python_ = false;
    bool is_out_ = false;
};

// --- beginning

Result<void> Runner::attach() {
    targets::TargetsFile file = request_.file;
    for (targets::TargetLine& line : file.lines) {
        line.options.delay = nanoseconds(0);
        line.options.start.reset();
        line.options.duration.reset();
        has_python_ |= line.runtime == targets::Runtime::kPython && !line.exclude;
    }
    for (size_t point = 0; point < request_.progress.size(); ++point) {
        if (request_.progress[point].kind != ProgressSpec::Kind::kPython) continue;
        auto line = line_of(request_.progress[point]);
        if (!line) return std::move(line).error();
        // The last line decides: a second one would take the functions of an equal target.
        const auto same = std::find_if(
            file.lines.begin(), file.lines.end(),
            [&](const targets::TargetLine& other) { return other.original == line->original; });
        python_progress_.push_back({point, static_cast<size_t>(same - file.lines.begin())});
        if (same != file.lines.end()) continue;
        line->options.delay = nanoseconds(0);
        file.lines.push_back(std::move(*line));
    }
    session::SessionOptions options = request_.session;
    options.engine = session::EngineChoice::kBpf; // only that one can take its probes out at once
    const auto told = [this](const std::string& text) { warn(text); };
    auto session = session::Session::attach(options, file, told);
    if (!session) return std::move(session).error();
    session_ = std::move(*session);
    auto points = open_progress(request_.progress, python_progress_, *session_, told);
    if (!points) return std::move(points).error();
    points_ = std::move(*points);
    bad_readings_.resize(points_.size());
    lost_.resize(points_.size());
    for (const ProgressSpec& spec : request_.progress)
        if (spec.kind == ProgressSpec::Kind::kCommand || spec.kind == ProgressSpec::Kind::kHttp)
            guard_tick_ = kPolledGuardTick;
    session_->arm();
    armed_ns_ = monotonic_ns();
    return {};
}

Result<void> Runner::find_targets() {
    const session::Snapshot snapshot = session_->snapshot();
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
        document_.targets.push_back(std::move(target));
        groups_.push_back(std::move(group));
    }
    if (snapshot.nothing_matched && snapshot.hook_failure) return *snapshot.hook_failure;
    if (snapshot.nothing_matched || document_.targets.empty())
        return make_error(ErrorKind::kNothingMatched, "no target matched anything");
    return {};
}

// Until three slices in a row have the same pace; gives the first progress point's.
Result<void> Runner::warm_up() {
    const uint64_t begin = monotonic_ns();
    std::vector<double> periods;
    for (;;) {
        const auto slice = measure({ArmKind::kProbe, 0, {}}, kWarmUpSlice);
        if (stop_)
            return make_error(ErrorKind::kIo,
                              "nothing was measured before the experiment ended: " + stop_->reason);
        if (slice && slice->progress[0] > 0)
            periods.push_back(ns(slice->progress_time[0]) /
                              static_cast<double>(slice->progress[0]));
        const nanoseconds waited(monotonic_ns() - begin);
        if (periods.empty() && waited >= kNoTick)
            return make_error(ErrorKind::kTimeout,
                              "progress point " + request_.progress[0].text +
                                  " did not tick within 5 s: nothing was measured")
                .with_hint("give the service some load, or another --progress");
        if (periods.size() >= 3) {
            const std::vector<double> latest(periods.end() - 3, periods.end());
            const auto [low, high] = std::minmax_element(latest.begin(), latest.end());
            period_ = median(latest);
            if ((*high - *low) / period_ <= kSteady) break;
        }
        if (waited >= kLongestWarmUp) {
            period_ = median(periods);
            document_.warnings.push_back("the pace of " + request_.progress[0].text +
                                         " did not settle within 10 s");
            break;
        }
    }
    if (document_.settings.slice.count() == 0)
        document_.settings.slice =
            std::clamp<nanoseconds>(nanoseconds(static_cast<int64_t>(period_ * kUnitsPerSlice)),
                                    kShortestSlice, kLongestSlice);
    return {};
}

// Raises the delay until its effect is easily seen.
void Runner::choose_doses(size_t target) {
    Target& described = document_.targets[target];
    if (groups_[target].empty()) return;
    if (!request_.doses.empty()) {
        described.doses = request_.doses;
        return;
    }
    hooks_.say("choosing the delays of " + described.name);
    const nanoseconds length = document_.settings.slice;
    const auto plain = measure({ArmKind::kProbe, 0, {}}, length);
    if (!plain || plain->progress[0] == 0) return;
    const double calls = static_cast<double>(plain->calls[target]);
    if (calls == 0) {
        described.notes.push_back("was not called");
        return;
    }
    const double period = ns(plain->progress_time[0]) / static_cast<double>(plain->progress[0]);
    const double calls_per_unit = calls / static_cast<double>(plain->progress[0]);
    const double least = 2 * ns(session_->floor(groups_[target].front())) + 1000;
    nanoseconds delay(static_cast<int64_t>(
        std::clamp(0.1 * period / calls_per_unit, least, ns(targets::kMaxDelay) / 1000)));
    const double seen = std::min(kSeenSlowdown, 0.4 * request_.max_slowdown);
    for (int step = 0; step < kPilotSteps && !stop_; ++step) {
        const auto slice = measure({ArmKind::kDose, target, delay}, length);
        if (!slice) { // a guard
            delay /= 2;
            break;
        }
        if (slice->progress[0] == 0) break;
        const double slowed =
            ns(slice->progress_time[0]) / static_cast<double>(slice->progress[0]) / period - 1;
        const double share = ns(slice->injected) / static_cast<double>(slice->progress[0]) / period;
        if (slowed >= seen || share >= kLargestShare) break;
        if (delay * 2 > targets::kMaxDelay) break;
        delay *= 2;
    }
    described.doses = doses_up_to(delay);
}

// Now, and in the document.
void Runner::warn(const std::string& text) {
    document_.warnings.push_back(text);
    hooks_.warn(text);
}

void Runner::warn_all(const std::vector<std::string>& warnings) {
    for (const std::string& text : warnings) warn(text);
}

// --- one slice

void Runner::wait(nanoseconds time) {
    const uint64_t end = monotonic_ns() + static_cast<uint64_t>(time.count());
    while (!stop_) {
        if (hooks_.stop_asked()) {
            stop_ = Stop{"interrupted", false};
            return;
        }
        const uint64_t now = monotonic_ns();
        if (now >= end) return;
        const auto left = std::chrono::ceil<milliseconds>(nanoseconds(end - now));
        const auto ran = session_->run_for(left, hooks_.wake_fd);
        if (!ran)
            stop_ = Stop{ran.error().kind == ErrorKind::kNotFound ? "the processes ended"
                                                                  : ran.error().message,
                         false};
    }
}

std::vector<Injected> Runner::read_targets() {
    std::vector<Injected> result(groups_.size());
    const auto all = session_->counts();
    if (!all) {
        stop_ = Stop{"the calls cannot be counted: " + all.error().message, false};
        return result;
    }
    std::map<uint32_t, engine::Counts> sums;
    for (const engine::Counts& counts : *all) sums[counts.target] += counts;
    for (size_t target = 0; target < groups_.size(); ++target)
        for (const uint32_t index : groups_[target]) {
            const auto found = sums.find(index);
            if (found == sums.end()) continue;
            result[target].calls += found->second.hits;
            // Against a probe without delay, which costs its floor too.
            result[target].time +=
                found->second.measured -
                session_->floor(index) * static_cast<int64_t>(found->second.delays);
        }
    return result;
}

Runner::Readings Runner::read(bool is_bound) {
    Readings readings;
    for (size_t point = 0; point < points_.size(); ++point) {
        auto reading = points_[point]->read();
        if (!reading) {
            note_bad_reading(point, reading.error().message);
            reading = point < last_.size() ? last_[point] : Reading{0, monotonic_ns()};
        }
        readings.progress.push_back(*reading);
        readings.latencies.push_back(is_bound ? points_[point]->latencies()
                                              : std::vector<uint64_t>());
        // Looked at all the time: it makes room again where none is left.
        lost_[point] = points_[point]->lost();
    }
    last_ = readings.progress;
    readings.targets = read_targets();
    if (is_bound) readings.waits = read_waits(pids_);
    readings.at_ns = monotonic_ns();
    return readings;
}

void Runner::note_bad_reading(size_t point, const std::string& what) {
    const std::string& name = request_.progress[point].text;
    if (++bad_readings_[point] == 1) {
        document_.warnings.push_back(name + ": " + what);
        hooks_.warn(document_.warnings.back());
    }
    if (bad_readings_[point] >= kMaxBadReadings)
        stop_ = Stop{"progress point " + name + " cannot be used: " + what, false};
}

void Runner::apply(const Arm& arm, nanoseconds length) {
    for (size_t target = 0; target < groups_.size(); ++target) {
        const bool delayed = arm.kind == ArmKind::kDose && arm.target == target;
        targets::Options change;
        change.delay = delayed ? arm.delay : nanoseconds(0);
        change.duration =
            delayed ? nanoseconds(monotonic_ns() - armed_ns_) + request_.settle + length + kDeadMan
                    : nanoseconds(0);
        for (const uint32_t index : groups_[target]) session_->set(index, change);
    }
    const bool out = arm.kind == ArmKind::kOff;
    if (out == is_out_) return;
    is_out_ = out;
    if (out) {
        std::set<size_t> lines;
        for (const PythonProgress& python : python_progress_) lines.insert(python.line);
        session_->take_out(!lines.empty(), lines);
    } else if (auto put = session_->put_back(); !put) {
        stop_ = Stop{"the probes cannot be put back: " + put.error().message, false};
    }
}

// Why a slice must end at once, if it must.
std::optional<std::string> Runner::guard(const Arm& arm, const Readings& before) {
    const Readings now = read(false);
    const double took = static_cast<double>(now.at_ns - before.at_ns);
    const uint64_t units = now.progress[0].units - before.progress[0].units;
    if (units > 0) last_tick_ns_ = now.at_ns;
    if (arm.kind != ArmKind::kDose) return std::nullopt;
    const double cpus = ns(now.targets[arm.target].time - before.targets[arm.target].time) / took;
    if (cpus > document_.settings.max_cpu)
        return fmt::format("it took {:.2f} CPUs, more than --max-cpu {:.2f}", cpus,
                           document_.settings.max_cpu);
    // So many units that it is no chance.
    const double expected = took / period_;
    const double slowdown = expected / std::max<double>(static_cast<double>(units), 0.5) - 1;
    const double noise = 3 / std::sqrt(expected);
    if (period_ > 0 && expected >= 5 && slowdown > request_.max_slowdown * (1 + noise) + noise)
        return fmt::format("it slowed the service by {:.0f}%, more than --max-slowdown {:.0f}%",
                           slowdown * 100, request_.max_slowdown * 100);
    return std::nullopt;
}

void Runner::give_up_dose(const Arm& arm, const std::string& why) {
    if (++strikes_[{arm.target, arm.delay.count()}] < kMaxStrikes) return;
    Target& target = document_.targets[arm.target];
    std::erase_if(target.doses, [&](nanoseconds dose) { return dose >= arm.delay; });
    target.notes.push_back("delay " + targets::format_duration(arm.delay) +
                           " was given up: " + why);
    hooks_.warn(target.name + ": " + target.notes.back());
}

Slice Runner::between(const Arm& arm, const Readings& before, const Readings& after) const {
    Slice slice;
    slice.arm = arm;
    slice.start = nanoseconds(before.at_ns - std::min(begun_ns_, before.at_ns));
    slice.length = nanoseconds(after.at_ns - before.at_ns);
    for (size_t point = 0; point < points_.size(); ++point) {
        const Reading& from = before.progress[point];
        const Reading& to = after.progress[point];
        slice.progress.push_back(to.units > from.units ? to.units - from.units : 0);
        slice.progress_time.emplace_back(to.at_ns - from.at_ns);
        slice.latency.push_back(latency_between(before.latencies[point], after.latencies[point]));
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

// nullopt when the slice was given up.
std::optional<Slice> Runner::measure(const Arm& arm, nanoseconds length) {
    apply(arm, length);
    wait(request_.settle);
    if (stop_) return std::nullopt;
    const Readings before = read(true);
    if (last_tick_ns_ == 0) last_tick_ns_ = before.at_ns;
    const uint64_t end = before.at_ns + static_cast<uint64_t>(length.count());
    for (uint64_t now = before.at_ns; now < end; now = monotonic_ns()) {
        wait(std::min<nanoseconds>(guard_tick_, nanoseconds(end - now)));
        if (stop_) return std::nullopt;
        if (const auto why = guard(arm, before)) {
            apply({ArmKind::kProbe, 0, {}}, length);
            give_up_dose(arm, *why);
            return std::nullopt;
        }
    }
    const Readings after = read(true);
    if (stop_) return std::nullopt; // something could not be read
    for (size_t point = 0; point < points_.size(); ++point)
        if (after.progress[point].units < before.progress[point].units) {
            note_bad_reading(point, "its running total went backwards");
            return std::nullopt;
        }
    const Slice slice = between(arm, before, after);
    if (slice.progress[0] > 0) last_tick_ns_ = after.at_ns;
    const double patience = std::max(ns(kNoTick), 20 * period_);
    if (period_ > 0 && static_cast<double>(after.at_ns - last_tick_ns_) > patience)
        stop_ = Stop{"progress point " + request_.progress[0].text + " ticks no more", false};
    return slice;
}

// --- blocks

std::vector<size_t> Runner::all_targets() const {
    std::vector<size_t> all;
    for (size_t target = 0; target < document_.targets.size(); ++target) all.push_back(target);
    return all;
}

// A block that does not come to its end is kept as far as it got: its arms are in random order.
void Runner::run_block(const std::vector<size_t>& targets, bool confirms) {
    const size_t number = document_.blocks.size();
    const bool with_off =
        request_.off_arm && !confirms && (!has_python_ || number % kOffEachBlocksOfPython == 0);
    Block block;
    block.confirms = confirms;
    for (const Arm& arm : arms_of_block(document_, targets, with_off, number)) {
        // A larger dose of this block may have been given up meanwhile.
        if (arm.kind == ArmKind::kDose) {
            const auto& doses = document_.targets[arm.target].doses;
            if (std::find(doses.begin(), doses.end(), arm.delay) == doses.end()) continue;
        }
        if (auto slice = measure(arm, document_.settings.slice)) {
            if (period_ > 0 && arm.kind == ArmKind::kProbe && slice->progress[0] > 0)
                period_ +=
                    0.2 * (ns(slice->progress_time[0]) / static_cast<double>(slice->progress[0]) -
                           period_);
            block.slices.push_back(std::move(*slice));
        }
        if (stop_) break;
    }
    apply({ArmKind::kProbe, 0, {}}, nanoseconds(0));
    if (!block.slices.empty()) document_.blocks.push_back(std::move(block));
    hooks_.after_block(document_);
}

// Whether the next block would go beyond the limit.
bool Runner::is_over(nanoseconds limit) {
    if (limit.count() == 0 || document_.blocks.empty()) return false;
    const auto each = elapsed() / static_cast<int64_t>(document_.blocks.size());
    return elapsed() + each > limit;
}

void Runner::run_blocks() {
    size_t wanted = 0; // targets that are left with something to measure
    for (const Target& target : document_.targets) wanted += !target.doses.empty();
    if (wanted == 0) {
        stop_ = Stop{"no target has a delay that could be tried", false};
        return;
    }
    nanoseconds limit = request_.time;
    if (wanted > 1) limit -= nanoseconds(static_cast<int64_t>(ns(limit) * kConfirmShare));
    while (!stop_) {
        if (request_.blocks > 0 && document_.blocks.size() >= request_.blocks) {
            stop_ = Stop{"blocks", true};
        } else if (is_over(limit)) {
            stop_ = Stop{"time", true};
        } else if (request_.precision > 0 && document_.blocks.size() >= kFewestBlocks &&
                   is_precise(document_, request_.precision)) {
            stop_ = Stop{"precision", true};
        } else {
            run_block(all_targets(), false);
        }
    }
}

// What stands out of several was chosen for its result: fresh blocks tell without that favour.
void Runner::confirm() {
    if (!stop_->planned || document_.targets.size() < 2) return;
    std::vector<size_t> chosen;
    document_.stopped = stop_->reason; // which intervals hold depends on it
    const Results results = analyse(document_);
    for (const TargetResult& target : results.progress[0].targets)
        if (target.verdict == Verdict::kMatters && chosen.size() < kConfirmed &&
            document_.targets[target.target].role == Role::kTarget)
            chosen.push_back(target.target);
    if (chosen.empty()) return;
    hooks_.say("confirming on fresh blocks");
    const Stop planned = *std::exchange(stop_, std::nullopt);
    const size_t blocks = std::max(kFewestBlocks, document_.blocks.size() / 3);
    for (size_t i = 0; i < blocks && !stop_ && !is_over(request_.time); ++i)
        run_block(chosen, true);
    if (!stop_) stop_ = planned;
}

// From the files that the lines name to their functions: each level delays groups, and the ones
// that matter are split for the next. Leaves single functions as the document's targets.
void Runner::bisect() {
    const session::Snapshot snapshot = session_->snapshot();
    const auto name_of = [&](uint32_t index) {
        const session::Target& target = snapshot.targets[index];
        return target.container + ":" + target.name;
    };
    const auto describe = [&](const std::vector<uint32_t>& group, const std::string& name) {
        Target target;
        target.name = name;
        for (const uint32_t index : group)
            if (target.functions.size() < kShownFunctions)
                target.functions.push_back(name_of(index));
        target.function_count = group.size();
        return target;
    };
    const auto replace = [&](const std::vector<std::pair<std::string, std::vector<uint32_t>>>& to) {
        apply({ArmKind::kProbe, 0, {}}, nanoseconds(0)); // the old groups' last delays
        document_.targets.clear();
        document_.blocks.clear();
        groups_.clear();
        for (const auto& [name, group] : to) {
            document_.targets.push_back(describe(group, name));
            groups_.push_back(group);
        }
        strikes_.clear();
    };

    std::map<std::string, std::vector<uint32_t>> files;
    for (const auto& group : groups_)
        for (const uint32_t index : group)
            files[snapshot.targets[index].container].push_back(index);
    std::vector<std::pair<std::string, std::vector<uint32_t>>> parts;
    for (auto& [file, group] : files)
        parts.emplace_back(group.size() == 1 ? name_of(group.front()) : file + ":*", group);
    for (size_t level = 0; level < kBisectLevels && !stop_; ++level) {
        replace(parts);
        const bool single = std::all_of(parts.begin(), parts.end(),
                                        [](const auto& part) { return part.second.size() == 1; });
        if (single) return; // run_blocks() goes on with these
        hooks_.say(fmt::format("bisect: level {}, {} groups", level + 1, parts.size()));
        for (const size_t target : all_targets()) choose_doses(target);
        for (size_t block = 0; block < kBisectBlocks && !stop_; ++block)
            run_block(all_targets(), false);
        if (stop_) return;
        std::vector<std::pair<std::string, std::vector<uint32_t>>> next;
        size_t kept = 0;
        document_.stopped = "blocks"; // so many at each level, looked at once
        const Results results = analyse(document_);
        document_.stopped.clear();
        for (const TargetResult& result : results.progress[0].targets) {
            const bool stands_out =
                result.verdict == Verdict::kMatters || result.shape.shape == Shape::kHinge;
            if (!stands_out || kept++ >= kBisectKept) continue;
            document_.warnings.push_back(fmt::format("bisect: {} has criticality {:.2f}",
                                                     document_.targets[result.target].name,
                                                     result.shape.slope.value));
            std::vector<uint32_t> group = groups_[result.target];
            const size_t pieces = std::min(kBisectParts, group.size());
            for (size_t piece = 0; piece < pieces; ++piece) {
                const auto at = [&](size_t cut) {
                    return group.begin() + static_cast<ptrdiff_t>(group.size() * cut / pieces);
                };
                std::vector<uint32_t> part(at(piece), at(piece + 1));
                std::string name = name_of(part.front());
                if (part.size() > 1) name += fmt::format(" and {} more", part.size() - 1);
                next.emplace_back(std::move(name), std::move(part));
            }
        }
        if (next.empty()) {
            stop_ = Stop{"bisect: no group of functions matters", true};
            return;
        }
        parts = std::move(next);
    }
}

Result<Document> Runner::run() {
    document_.seed = request_.seed;
    document_.started_unix_ns =
        std::chrono::duration_cast<nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
            .count();
    const double cpus = static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN));
    document_.settings = {request_.slice, request_.settle, request_.precision,
                          request_.max_slowdown,
                          request_.max_cpu > 0 ? request_.max_cpu : cpus / 2};
    for (const ProgressSpec& spec : request_.progress) document_.progress.push_back(spec.text);

    if (auto attached = attach(); !attached) return std::move(attached).error();
    if (auto found = find_targets(); !found) return std::move(found).error();
    for (const session::ProcessInfo& process : session_->snapshot().processes)
        if (process.alive) pids_.push_back(process.pid);
    warn_all(host_warnings(pids_));
    hooks_.say("waiting for a steady pace");
    const CpuTimes before = read_cpu_times(pids_);
    if (auto warm = warm_up(); !warm) return std::move(warm).error();
    begun_ns_ = monotonic_ns();
    if (request_.bisect) bisect();
    for (const size_t target : all_targets())
        if (!stop_) choose_doses(target);
    begun_ns_ = monotonic_ns();
    run_blocks();
    confirm();
    apply({ArmKind::kProbe, 0, {}}, nanoseconds(0));
    session_->pause();
    const CpuTimes after = read_cpu_times(pids_);
    if (stop_->planned) warn_all(load_warnings(before, after));
    warn_all(contention_warnings(document_));
    for (size_t point = 0; point < points_.size(); ++point)
        if (lost_[point] > 0)
            warn(fmt::format("{}: {} calls could not be timed", request_.progress[point].text,
                             lost_[point]));
    document_.tool_cpu = (after.own - before.own) / ((after.total - before.total) / cpus);
    document_.stopped = stop_->reason;
    document_.complete = stop_->planned;
    return document_;
}

} // namespace

Result<Document> run_experiment(const Request& request, const Hooks& hooks) {
    Runner runner(request, hooks);
    return runner.run();
}

} // namespace speedbump::experiment
