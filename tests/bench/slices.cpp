// SPDX-License-Identifier: MIT
// All targets of a service at once, in short slices that the clock switches:
//   slices PID PROGRESS SECONDS SLICE_US <TARGETS
// Prints what each target's criticality is, and what it cost this program.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <string>

#include "experiment/model/effects.h"
#include "experiment/trial.h"
#include "session/session.h"
#include "targets/parser.h"

using namespace speedbump;
using namespace speedbump::experiment;
using namespace std::chrono_literals;

namespace {

constexpr double kShare = 0.1; // of a unit's time, that the full dose of a target is
constexpr auto kPilot = 2s;

[[noreturn]] void fail(const std::string& what) {
    fmt::print(stderr, "slices: {}\n", what);
    std::exit(1);
}

template <typename Value>
Value must(Result<Value> result) {
    if (!result) fail(result.error().message);
    return std::move(*result);
}

double cpu_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& time) {
        return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Bench {
    targets::TargetsFile file;
    std::unique_ptr<session::Session> session;
    std::vector<std::unique_ptr<ProgressPoint>> points;
    TrialPlan plan;
    std::vector<std::string> names; // of the plan's targets

    void open(pid_t pid, const std::string& progress, const std::string& text) {
        auto parsed = targets::parse_targets(text, "stdin");
        if (!parsed.errors.empty()) fail(parsed.errors[0].message);
        file = std::move(parsed.file);
        for (auto& line : file.lines) line.options.delay = 0ns;
        const ProgressSpec spec = must(parse_progress(progress));
        std::vector<PythonProgress> python;
        const size_t own = file.lines.size();
        if (spec.kind == ProgressSpec::Kind::kPython) {
            python.push_back({0, own});
            file.lines.push_back(must(line_of(spec)));
            file.lines.back().options.delay = 0ns;
        }
        session::SessionOptions options;
        options.pids = {pid};
        options.engine = session::EngineChoice::kBpf;
        options.columns = static_cast<uint32_t>(file.lines.size());
        const auto warn = [](const std::string& warning) { fmt::print(stderr, "{}\n", warning); };
        session = must(session::Session::attach(options, file, warn));
        points = must(open_progress({spec}, python, *session, warn));
        for (size_t line = 0; line < own; ++line) {
            TrialTarget target;
            for (uint32_t index = 0; index < session->snapshot().targets.size(); ++index)
                if (session->snapshot().targets[index].line_index == line)
                    target.members.push_back(index);
            if (target.members.empty()) continue;
            names.push_back(file.lines[line].original);
            plan.targets.push_back(std::move(target));
        }
        for (uint32_t index = 0; index < session->snapshot().targets.size(); ++index)
            if (session->snapshot().targets[index].line_index == own) plan.progress = index;
        session->arm();
    }

    double calls_of(const TrialTarget& target) {
        double calls = 0;
        for (const engine::Counts& counts : must(session->counts()))
            for (const uint32_t member : target.members)
                if (counts.target == member) calls += static_cast<double>(counts.hits);
        return calls;
    }

    // The full dose of each target is the same share of a unit's time.
    void choose_doses() {
        std::vector<double> before;
        for (const TrialTarget& target : plan.targets) before.push_back(calls_of(target));
        const Reading from = must(points[0]->read());
        if (auto ran = session->run_for(kPilot); !ran) fail(ran.error().message);
        const Reading to = must(points[0]->read());
        if (to.units == from.units) fail("no progress");
        const double period =
            static_cast<double>(to.at_ns - from.at_ns) / static_cast<double>(to.units - from.units);
        for (size_t target = 0; target < plan.targets.size(); ++target) {
            const double calls = (calls_of(plan.targets[target]) - before[target]) /
                                 static_cast<double>(to.units - from.units);
            if (calls > 0)
                plan.targets[target].dose = nanoseconds(
                    static_cast<int64_t>(std::clamp(kShare * period / calls, 1000.0, 20e6)));
        }
    }
};

void print(const Bench& bench, const Trial& trial, const EffectLimits& limits) {
    const SlicedRun& run = trial.measured();
    const Response response = find_response(run);
    const Regression regression = regress(run, response);
    fmt::print("{} slices, {} gaps, period {:.1f} us, an effect arrives within {} slices\n",
               run.units.size(), trial.gaps(), regression.period / 1000, response.lags + 1);
    fmt::print("{:<44} {:>10} {:>14} {:>10} {:>14}\n", "target", "full dose", "criticality", "+-",
               "finding");
    for (const Effect& effect : find_effects(regression, limits)) {
        const auto& interval = effect.criticality.interval;
        fmt::print("{:<44} {:>7.1f} us {:>14.3f} {:>10.3f} {:>14}\n", bench.names[effect.target],
                   static_cast<double>(bench.plan.targets[effect.target].dose.count()) / 1000,
                   effect.criticality.value, interval.half_width(), to_string(effect.finding));
    }
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 5) fail("slices PID PROGRESS SECONDS SLICE_US <TARGETS");
    Bench bench;
    bench.open(std::atoi(argv[1]), argv[2],
               {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()});
    bench.choose_doses();
    bench.plan.slice = std::chrono::microseconds(std::atol(argv[4]));
    bench.plan.seed = static_cast<uint64_t>(Clock::now().time_since_epoch().count());
    Trial trial(*bench.session, *bench.points[0], bench.plan);
    if (auto begun = trial.begin(); !begun) fail(begun.error().message);
    const double cpu = cpu_seconds();
    const auto seconds = std::chrono::seconds(std::atol(argv[3]));
    if (auto went = trial.go_on(seconds); !went) fail(went.error().message);
    trial.end();
    const double used = (cpu_seconds() - cpu) / static_cast<double>(seconds.count());
    print(bench, trial, {});
    fmt::print("this program used {:.2f} % of a CPU meanwhile; seed {}\n", 100 * used,
               bench.plan.seed);
}
