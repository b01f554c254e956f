// SPDX-License-Identifier: MIT
#include "experiment/pair_runner.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "experiment/host.h"
#include "experiment/progress.h"
#include "session/session.h"
#include "util/clock.h"

namespace speedbump::experiment {

namespace {

using std::chrono::milliseconds;

constexpr auto kNoTick = std::chrono::seconds(5);
constexpr auto kWarmUp = std::chrono::seconds(1);
constexpr auto kBeat = std::chrono::seconds(1);
constexpr size_t kFewestSlices = 120; // before an interval is believed
constexpr int kMaxBadReadings = 3;

const char* name_of(Side side) {
    return side == kSideA ? "a" : "b";
}

// One of the two, with nothing but its progress points.
struct Build {
    std::unique_ptr<session::Session> session;
    std::vector<std::unique_ptr<ProgressPoint>> points; // after the session
    std::vector<pid_t> pids;
};

std::vector<pid_t> processes_of(session::Session& session) {
    std::vector<pid_t> pids;
    for (const session::ProcessInfo& process : session.snapshot().processes)
        if (process.alive) pids.push_back(process.pid);
    std::sort(pids.begin(), pids.end());
    return pids;
}

// The counts of both at one moment.
struct Moment {
    std::vector<std::array<Reading, 2>> progress;
};

class PairRunner {
  public:
    PairRunner(const PairRequest& request, const PairHooks& hooks)
        : request_(request), hooks_(hooks) {}

    Result<PairDocument> run();

  private:
    Result<void> attach(Side side);
    Result<void> wait_for_ticks();
    Result<Moment> read();
    void begin_beat(const Moment& now);
    void end_beat(const Moment& now);
    void wait_until(uint64_t end_ns);
    // Gives up where a total went backwards.
    PairSlice between(const Moment& before, const Moment& now, uint64_t begun_ns);
    void run_slices();
    void conclude(const CpuTimes& before, uint64_t begun_ns);
    std::optional<std::string> over(uint64_t begun_ns) const;

    const PairRequest& request_;
    const PairHooks& hooks_;
    PairDocument document_;
    std::array<Build, 2> builds_;
    std::string stopped_;
    bool planned_ = false;
    int bad_readings_ = 0;
    // Of the beat that goes on.
    Moment beat_begin_;
    std::array<double, 2> beat_cpu_{};
    std::vector<std::array<std::vector<uint64_t>, 2>> beat_latencies_;
    // Before the first slice.
    std::array<std::map<pid_t, nanoseconds>, 2> waits_;
    std::array<double, 2> ran_{};
};

Result<void> PairRunner::attach(Side side) {
    Build& build = builds_[side];
    session::SessionOptions options;
    options.pids = {request_.pids[side]};
    options.follow_children = request_.follow_children;
    options.engine = session::EngineChoice::kBpf;
    const auto warn = [this, side](const std::string& text) {
        document_.warnings.push_back(fmt::format("{}: {}", name_of(side), text));
        hooks_.warn(document_.warnings.back());
    };
    auto session = session::Session::attach(options, {}, warn);
    if (!session) return std::move(session).error();
    build.session = std::move(*session);
    auto points = open_progress(request_.progress, {}, *build.session, warn);
    if (!points) return std::move(points).error();
    build.points = std::move(*points);
    build.pids = processes_of(*build.session);
    build.session->arm();
    return {};
}

// One point after the other, so that the two readings of one are nearly of the same moment.
Result<Moment> PairRunner::read() {
    Moment result;
    result.progress.resize(request_.progress.size());
    for (size_t point = 0; point < request_.progress.size(); ++point)
        for (const Side side : {kSideA, kSideB}) {
            auto reading = builds_[side].points[point]->read({});
            if (!reading) return std::move(reading).error();
            result.progress[point][side] = *reading;
        }
    return result;
}

// Deals with what happens in both trees meanwhile.
void PairRunner::wait_until(uint64_t end_ns) {
    while (stopped_.empty()) {
        if (hooks_.stop_asked()) {
            stopped_ = "interrupted";
            return;
        }
        const uint64_t now = monotonic_ns();
        const auto left =
            std::chrono::ceil<milliseconds>(nanoseconds(now < end_ns ? end_ns - now : 0));
        for (const Side side : {kSideA, kSideB}) {
            const auto ran = builds_[side].session->run_for(side == kSideA ? left : milliseconds(0),
                                                            hooks_.wake_fd);
            if (ran) continue;
            stopped_ = fmt::format("{}: {}", name_of(side),
                                   ran.error().kind == ErrorKind::kNotFound ? "its processes ended"
                                                                            : ran.error().message);
            return;
        }
        if (monotonic_ns() >= end_ns) return;
    }
}

Result<void> PairRunner::wait_for_ticks() {
    const auto first = read();
    if (!first) return first.error();
    const uint64_t begin = monotonic_ns();
    for (;;) {
        wait_until(monotonic_ns() + static_cast<uint64_t>(nanoseconds(milliseconds(100)).count()));
        if (!stopped_.empty())
            return make_error(ErrorKind::kIo, "nothing was measured before it ended: " + stopped_);
        const auto now = read();
        if (!now) return now.error();
        std::string silent;
        for (const Side side : {kSideA, kSideB})
            if (now->progress[0][side].units == first->progress[0][side].units)
                silent += silent.empty() ? name_of(side) : " and b";
        const nanoseconds waited(monotonic_ns() - begin);
        if (silent.empty() && waited >= kWarmUp) return {};
        if (!silent.empty() && waited >= kNoTick)
            return make_error(ErrorKind::kTimeout, "progress point " + request_.progress[0].text +
                                                       " did not tick within 5 s in " + silent +
                                                       ": nothing was measured")
                .with_hint("give both services load, or another --progress");
    }
}

void PairRunner::begin_beat(const Moment& now) {
    beat_begin_ = now;
    beat_latencies_.resize(request_.progress.size());
    for (const Side side : {kSideA, kSideB}) {
        beat_cpu_[side] = read_cpu_times(builds_[side].pids).processes;
        for (size_t point = 0; point < request_.progress.size(); ++point)
            beat_latencies_[point][side] = builds_[side].points[point]->latencies();
    }
}

void PairRunner::end_beat(const Moment& now) {
    const auto latencies = beat_latencies_;
    const auto cpu = beat_cpu_;
    const Moment before = beat_begin_;
    begin_beat(now);
    PairBeat beat;
    beat.latency.resize(request_.progress.size());
    for (const Side side : {kSideA, kSideB}) {
        beat.cpu[side] = {
            static_cast<double>(now.progress[0][side].units - before.progress[0][side].units),
            (beat_cpu_[side] - cpu[side]) * 1e9};
        for (size_t point = 0; point < request_.progress.size(); ++point)
            beat.latency[point][side] =
                latency_between(latencies[point][side], beat_latencies_[point][side]);
    }
    document_.beats.push_back(std::move(beat));
}

// Why it is over as planned, if it is.
std::optional<std::string> PairRunner::over(uint64_t begun_ns) const {
    if (request_.time.count() > 0 && nanoseconds(monotonic_ns() - begun_ns) >= request_.time)
        return "time";
    if (request_.precision > 0 && document_.slices.size() >= kFewestSlices &&
        change_so_far(document_).interval.half_width() <= request_.precision)
        return "precision";
    return std::nullopt;
}

PairSlice PairRunner::between(const Moment& before, const Moment& now, uint64_t begun_ns) {
    PairSlice slice;
    slice.start = nanoseconds(before.progress[0][kSideA].at_ns - begun_ns);
    for (size_t point = 0; point < request_.progress.size(); ++point) {
        slice.progress.emplace_back();
        for (const Side side : {kSideA, kSideB}) {
            const Reading& from = before.progress[point][side];
            const Reading& to = now.progress[point][side];
            if (to.units < from.units) stopped_ = "a running total went backwards";
            slice.progress.back()[side] = {
                static_cast<double>(to.units - std::min(to.units, from.units)),
                static_cast<double>(to.at_ns - from.at_ns)};
        }
    }
    return slice;
}

void PairRunner::run_slices() {
    const uint64_t begun_ns = monotonic_ns();
    const auto length = static_cast<uint64_t>(request_.slice.count());
    auto before = read();
    if (!before) {
        stopped_ = "no reading: " + before.error().message;
        return;
    }
    begin_beat(*before);
    uint64_t beat_ns = begun_ns;
    uint64_t end = begun_ns;
    while (stopped_.empty()) {
        // Where this program had no CPU for a time that slice is longer, and the next none too
        // short.
        end = std::max(end + length, monotonic_ns() + length / 2);
        wait_until(end);
        if (!stopped_.empty()) return;
        auto now = read();
        if (!now) {
            if (++bad_readings_ >= kMaxBadReadings) stopped_ = "no reading: " + now.error().message;
            continue;
        }
        PairSlice slice = between(*before, *now, begun_ns);
        if (!stopped_.empty()) return;
        document_.slices.push_back(std::move(slice));
        before = std::move(now);
        if (nanoseconds(monotonic_ns() - beat_ns) < kBeat) continue;
        beat_ns = monotonic_ns();
        end_beat(*before);
        if (const auto why = over(begun_ns)) {
            stopped_ = *why;
            planned_ = true;
        }
        hooks_.after_second(document_);
    }
}

void PairRunner::conclude(const CpuTimes& before, uint64_t begun_ns) {
    const double seconds = static_cast<double>(monotonic_ns() - begun_ns) / 1e9;
    document_.has_cpu = true;
    for (const Side side : {kSideA, kSideB}) {
        Build& build = builds_[side];
        document_.waited[side] = ns(waited_between(waits_[side], read_waits(build.pids))) / 1e9 /
                                 std::max(seconds, 1e-9);
        document_.ran[side] =
            (read_cpu_times(build.pids).processes - ran_[side]) / std::max(seconds, 1e-9);
        document_.has_cpu &= processes_of(*build.session) == build.pids;
        for (size_t point = 0; point < build.points.size(); ++point)
            if (const uint64_t lost = build.points[point]->lost(); lost > 0)
                document_.warnings.push_back(fmt::format("{}: {} calls of {} could not be timed",
                                                         name_of(side), lost,
                                                         request_.progress[point].text));
    }
    document_.tool_cpu = (read_cpu_times({}).own - before.own) / std::max(seconds, 1e-9);
    document_.stopped = stopped_;
    document_.complete = planned_;
}

Result<PairDocument> PairRunner::run() {
    for (const ProgressSpec& spec : request_.progress) {
        using Kind = ProgressSpec::Kind;
        if (spec.kind == Kind::kCommand || spec.kind == Kind::kFile || spec.kind == Kind::kHttp)
            return make_error(ErrorKind::kUsage,
                              spec.text +
                                  " does not tell the two of --ab apart: it is the same "
                                  "number for both")
                .with_hint("count calls, marks or system calls of the processes");
        if (spec.kind == Kind::kPython) // a thread owns one session's table (engine/python)
            return make_error(ErrorKind::kUsage, spec.text +
                                                     ": Python calls cannot be counted with "
                                                     "--ab yet")
                .with_hint("count a native function, a mark or a system call of the processes");
        document_.progress.push_back(spec.text);
    }
    document_.started_unix_ns =
        std::chrono::duration_cast<nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
            .count();
    document_.pids = request_.pids;
    document_.slice = request_.slice;
    document_.precision = request_.precision;
    for (const Side side : {kSideA, kSideB}) {
        std::array<char, 4096> path{};
        const ssize_t length = ::readlink(fmt::format("/proc/{}/exe", request_.pids[side]).c_str(),
                                          path.data(), path.size());
        if (length > 0) document_.programs[side].assign(path.data(), static_cast<size_t>(length));
        if (auto attached = attach(side); !attached) return std::move(attached).error();
    }
    std::vector<pid_t> all = builds_[kSideA].pids;
    for (const pid_t pid : builds_[kSideB].pids)
        if (std::find(all.begin(), all.end(), pid) != all.end())
            return make_error(ErrorKind::kUsage,
                              fmt::format("process {} belongs to both of --ab", pid));
    all.insert(all.end(), builds_[kSideB].pids.begin(), builds_[kSideB].pids.end());
    for (const std::string& text : host_warnings(all)) {
        document_.warnings.push_back(text);
        hooks_.warn(text);
    }
    hooks_.say("waiting for progress of both");
    if (auto ticks = wait_for_ticks(); !ticks) return std::move(ticks).error();
    const CpuTimes before = read_cpu_times({});
    for (const Side side : {kSideA, kSideB}) {
        waits_[side] = read_waits(builds_[side].pids);
        ran_[side] = read_cpu_times(builds_[side].pids).processes;
    }
    const uint64_t begun_ns = monotonic_ns();
    run_slices();
    conclude(before, begun_ns);
    return std::move(document_);
}

} // namespace

Result<PairDocument> run_pair(const PairRequest& request, const PairHooks& hooks) {
    return PairRunner(request, hooks).run();
}

} // namespace speedbump::experiment
