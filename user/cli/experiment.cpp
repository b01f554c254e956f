// SPDX-License-Identifier: MIT
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>

#include "cli/ab.h"
#include "cli/command.h"
#include "cli/exit_status.h"
#include "cli/fleet.h"
#include "cli/live_report.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/results.h"
#include "experiment/analysis.h"
#include "experiment/runner.h"
#include "fleet/coordinator.h"
#include "lifecycle/signals.h"
#include "report/experiment.h"
#include "targets/parser.h"
#include "util/clock.h"
#include "util/log.h"

namespace speedbump::cli {

namespace {

struct ExperimentArguments {
    experiment::Request request;
    std::string targets_path;
    std::vector<pid_t> ab;
    GateArguments gate;
    FleetArguments fleet;
    std::optional<uint16_t> live; // port
    std::vector<std::string> progress;
    std::vector<std::string> positive;
    std::vector<std::string> doses;
    std::optional<std::string> precision, max_slowdown;
    std::optional<std::chrono::nanoseconds> time, slice, settle;
    std::optional<uint64_t> seed;
    ResultFiles files;
    OutputArguments output;
};

Result<void> add_positive(experiment::Request& request, const std::string& text) {
    targets::ParseOutcome outcome = targets::parse_targets(text, "--positive");
    if (!outcome.errors.empty() || outcome.file.lines.size() != 1)
        return make_error(ErrorKind::kUsage,
                          "--positive: '" + text + "' is not a line of a targets file");
    request.positive_lines.push_back(request.file.lines.size());
    request.file.lines.push_back(std::move(outcome.file.lines.front()));
    return {};
}

Result<std::vector<experiment::ProgressSpec>> parse_all(const std::vector<std::string>& progress) {
    std::vector<experiment::ProgressSpec> specs;
    for (const std::string& text : progress) {
        auto spec = experiment::parse_progress(text);
        if (!spec) return std::move(spec).error();
        specs.push_back(std::move(*spec));
    }
    return specs;
}

Result<AbArguments> complete_ab(const ExperimentArguments& arguments) {
    AbArguments ab;
    if (!arguments.targets_path.empty())
        return make_error(ErrorKind::kUsage, "--ab slows nothing: it takes no targets file");
    if (arguments.ab[0] == arguments.ab[1])
        return make_error(ErrorKind::kUsage, "--ab: a process cannot be compared with itself");
    ab.request.pids = {arguments.ab[0], arguments.ab[1]};
    ab.request.follow_children = arguments.request.session.follow_children;
    auto progress = parse_all(arguments.progress);
    if (!progress) return std::move(progress).error();
    ab.request.progress = std::move(*progress);
    if (arguments.precision) {
        const auto share = parse_share("--precision", *arguments.precision);
        if (!share) return share.error();
        ab.request.precision = *share;
    }
    if (arguments.time)
        ab.request.time = *arguments.time;
    else // until it is precise, but not for ever
        ab.request.time = arguments.precision ? std::chrono::minutes(10) : std::chrono::minutes(1);
    if (arguments.slice) ab.request.slice = *arguments.slice;
    if (ab.request.slice < std::chrono::milliseconds(1) ||
        ab.request.slice > std::chrono::seconds(1))
        return make_error(ErrorKind::kUsage, "--slice: 1ms to 1s with --ab");
    ab.gate = arguments.gate;
    ab.files = arguments.files;
    ab.output = arguments.output;
    return ab;
}

// The targets file, and for --whole=python all of it where there is no line.
Result<targets::TargetsFile> load_lines(const ExperimentArguments& arguments) {
    targets::TargetsFile file;
    const std::set<targets::Runtime>& whole = arguments.request.whole;
    if (!arguments.targets_path.empty()) {
        auto loaded = targets::load_targets(arguments.targets_path);
        if (!loaded) return loaded;
        file = std::move(*loaded);
    } else if (!whole.contains(targets::Runtime::kPython)) {
        return make_error(ErrorKind::kUsage, "targets is required")
            .with_hint("speedbump experiment --help");
    }
    for (const targets::Runtime runtime : whole) {
        const bool has = std::any_of(file.lines.begin(), file.lines.end(), [&](const auto& line) {
            return line.runtime == runtime && !line.exclude;
        });
        if (has) continue;
        if (runtime == targets::Runtime::kNative)
            return make_error(ErrorKind::kUsage,
                              "--whole=native is for native lines of the targets file, which has "
                              "none")
                .with_hint("name the libraries in question, as in +libfoo.so*:*");
        targets::ParseOutcome all = targets::parse_targets("*:*", "--whole=python");
        // Before the others: exclusions go on to hold.
        file.lines.insert(file.lines.begin(), all.file.lines.front());
    }
    return file;
}

// `combinations`: how the progress of many hosts is put together, where there are any.
Result<experiment::Request> complete(const ExperimentArguments& arguments, size_t hosts,
                                     std::vector<fleet::Combination>& combinations) {
    experiment::Request request = arguments.request;
    if (arguments.gate.limit)
        return make_error(ErrorKind::kUsage,
                          "--fail-if-worse is for --ab, and for `compare` of two results");
    auto file = load_lines(arguments);
    if (!file) return std::move(file).error();
    request.file = std::move(*file);
    for (const std::string& text : arguments.positive)
        if (auto added = add_positive(request, text); !added) return std::move(added).error();
    std::vector<std::string> points = arguments.progress;
    for (std::string& point : points) {
        if (hosts == 0) break;
        const auto combination = fleet::take_combination(point, hosts);
        if (!combination) return combination.error();
        combinations.push_back(*combination);
    }
    auto progress = parse_all(points);
    if (!progress) return std::move(progress).error();
    request.progress = std::move(*progress);
    for (const std::string& text : arguments.doses) {
        const auto dose = targets::parse_duration(text);
        if (!dose || dose->count() == 0 || *dose > targets::kMaxDelay)
            return make_error(
                ErrorKind::kUsage,
                "--doses: '" + text + "' is not a delay of more than 0 and up to 10s");
        request.doses.push_back(*dose);
    }
    std::sort(request.doses.begin(), request.doses.end());
    request.doses.erase(std::unique(request.doses.begin(), request.doses.end()),
                        request.doses.end());
    if (arguments.precision) {
        const auto share = parse_share("--precision", *arguments.precision);
        if (!share) return share.error();
        request.precision = *share;
    }
    if (arguments.max_slowdown) {
        const auto share = parse_share("--max-slowdown", *arguments.max_slowdown);
        if (!share) return share.error();
        request.max_slowdown = *share;
    }
    if (arguments.time) request.time = *arguments.time;
    if (arguments.slice) request.slice = *arguments.slice;
    if (request.bisect && request.slice.count() > 0 &&
        request.slice <= experiment::kLongestSwitched)
        return make_error(ErrorKind::kUsage,
                          "--bisect measures group by group: --slice is more than " +
                              targets::format_duration(experiment::kLongestSwitched) + " with it");
    if (arguments.settle) request.settle = *arguments.settle;
    if (request.blocks == 0 && request.time.count() == 0) {
        // Until it is precise, but not for ever.
        request.time = request.precision > 0 ? std::chrono::minutes(10) : std::chrono::minutes(1);
        if (request.precision == 0) request.precision = experiment::kDefaultPrecision;
    }
    request.seed = arguments.seed ? *arguments.seed : std::random_device()();
    return request;
}

Result<int> run(const ExperimentArguments& arguments) {
    const auto is_fleet = asks_for_fleet(arguments.fleet);
    if (!is_fleet) return is_fleet.error();
    if (!arguments.ab.empty()) {
        const auto ab = complete_ab(arguments);
        if (!ab) return ab.error();
        return run_ab(*ab);
    }
    auto launches = find_hosts(arguments.fleet);
    if (!launches) return std::move(launches).error();
    std::vector<fleet::Combination> combinations;
    auto request = complete(arguments, launches->size(), combinations);
    if (!request) return std::move(request).error();
    std::optional<fleet::FleetRequest> fleet;
    if (*is_fleet) {
        auto completed =
            complete_fleet(arguments.fleet, std::move(*launches), *request, combinations);
        if (!completed) return std::move(completed).error();
        fleet = std::move(*completed);
    }
    auto signals = lifecycle::Signals::install();
    if (!signals) return std::move(signals).error();
    // Before the service is touched: a result that cannot be written is none.
    auto writer = ResultWriter::open(arguments.files, arguments.output);
    if (!writer) return std::move(writer).error();

    auto live = LiveReport::open(arguments.live, *request);
    if (!live) return std::move(live).error();

    Clock::time_point shown{};
    std::chrono::nanoseconds took{0}; // of CPU: who waits for one is no load
    experiment::Hooks hooks;
    hooks.warn = [&](const std::string& text) {
        writer->output().erase();
        log::warning(text);
    };
    hooks.say = [&](const std::string& text) { writer->output().say(text); };
    hooks.stop_asked = [&] {
        signals->drain();
        return signals->stop_signal() != 0;
    };
    hooks.wake_fd = signals->fd();
    hooks.after_block = [&](const experiment::Document& document) {
        // The analysis must not become the load.
        const Clock::time_point now = Clock::now();
        const std::chrono::nanoseconds before = thread_cpu_time();
        const bool animated = writer->output().animated();
        if ((!animated && !arguments.live) || now - shown < 100 * took) return;
        const experiment::Results results = experiment::analyse(document);
        if (animated) writer->output().redraw(report::experiment_progress(document, results));
        live->show(document, results);
        shown = Clock::now();
        took = thread_cpu_time() - before;
    };
    auto document =
        fleet ? fleet::run_fleet(*fleet, hooks) : experiment::run_experiment(*request, hooks);
    if (!document) return std::move(document).error();
    set_origin(*document);
    auto written = writer->write(*document);
    live->end(*document, hooks.stop_asked);
    return written;
}

void add_ab(CLI::App& places, ExperimentArguments& arguments) {
    places
        .add_option("--ab", arguments.ab,
                    "two processes, of two builds under the same load: whose units take longer")
        ->type_name("PID_A PID_B")
        ->expected(2)
        ->check(process_id());
}

void add_whole(CLI::App& command, std::set<targets::Runtime>& whole) {
    command
        .add_option_function<std::vector<std::string>>(
            "--whole",
            [&whole](const std::vector<std::string>& runtimes) {
                for (const std::string& runtime : runtimes)
                    whole.insert(runtime == "python" ? targets::Runtime::kPython
                                                     : targets::Runtime::kNative);
            },
            "all lines of this runtime are one target: does it matter at all? python needs no line")
        ->type_name("python|native")
        ->check(CLI::IsMember({"python", "native"}))
        ->allow_extra_args(false)
        ->delimiter(',')
        ->excludes(command.get_option("--bisect"));
}

void add_progress(CLI::App& command, std::vector<std::string>& progress) {
    command
        .add_option("--progress", progress,
                    "what throughput means; may be repeated, the first ranks:\n"
                    "native:BINARY:SYMBOL, python:MODULE:NAME, latency:BINARY:SYMBOL, "
                    "usdt:BINARY:PROVIDER:NAME, syscall:NAME, command:CMD, file:PATH:REGEX, "
                    "http:URL:REGEX, device:cuda, device:BINARY:LAUNCHES:WAITS")
        ->type_name("PROGRESS")
        ->allow_extra_args(false)
        ->required();
}

void add_live(CLI::App& command, ExperimentArguments& arguments) {
    command
        .add_option("--live", arguments.live,
                    "serve the report as it grows on this port of 127.0.0.1 (0: any that is free), "
                    "to whoever has the address that is printed")
        ->type_name("PORT");
}

// Of this host: agents on others have theirs.
void add_engine(CLI::App& command, session::EngineChoice& engine) {
    CLI::Option* option = add_choice<session::EngineChoice>(
        command, "--engine", engine,
        {{"bpf", session::EngineChoice::kBpf}, {"inprocess", session::EngineChoice::kInprocess}},
        "what delays native functions: bpf or inprocess [bpf]");
    option->type_name("ENGINE");
    for (const char* at : {"--at", "--at-slurm", "--at-pods"})
        option->excludes(command.get_option(at));
}

// What has no meaning where nothing is slowed.
void limit_ab(CLI::App& command) {
    CLI::Option* ab = command.get_option("--ab");
    for (const char* other :
         {"--pid", "--cgroup", "--doses", "--blocks", "--seed", "--positive", "--bisect", "--whole",
          "--max-slowdown", "--max-cpu", "--settle", "--no-off", "--html", "--live", "--at",
          "--at-slurm", "--at-pods", "--engine"})
        ab->excludes(command.get_option(other));
}

} // namespace

void add_experiment(CLI::App& app, Action& action) {
    auto arguments = std::make_shared<ExperimentArguments>();
    experiment::Request& request = arguments->request;
    CLI::App* command = app.add_subcommand(
        "experiment", "measure how much functions matter for the throughput of running processes");
    auto* places = command->add_option_group("processes");
    add_pids(*places, request.session.pids);
    places->add_option("--cgroup", request.session.cgroup, "all processes of a cgroup (v2)")
        ->type_name("PATH");
    add_ab(*places, *arguments);
    places->require_option(1, 0);
    command
        ->add_option("targets", arguments->targets_path,
                     "targets file; each line is a target (not with --ab)")
        ->type_name("TARGETS");
    add_progress(*command, arguments->progress);
    command->add_option("--doses", arguments->doses, "delays to try [chosen by their effect]")
        ->type_name("TIME,...")
        ->allow_extra_args(false)
        ->delimiter(',');
    command->add_option("--blocks", request.blocks, "end after N blocks of all arms")
        ->type_name("N")
        ->check(number_between(2, 100000));
    command
        ->add_option("--precision", arguments->precision,
                     "end when criticalities are known to within SHARE (5%)")
        ->type_name("SHARE");
    add_duration(*command, "--time", arguments->time, "end after TIME [60s]");
    command->add_option("--seed", arguments->seed, "of the random order of arms [random]")
        ->type_name("N");
    command
        ->add_option("--positive", arguments->positive,
                     "a line naming a function that is known to be serial: a control")
        ->type_name("LINE")
        ->allow_extra_args(false);
    command->add_flag("--bisect", request.bisect,
                      "from all that the lines name to the single functions that matter: packages, "
                      "modules, classes; files");
    add_whole(*command, request.whole);
    command
        ->add_option("--max-slowdown", arguments->max_slowdown,
                     "give a delay up that slows more than SHARE [50%]")
        ->type_name("SHARE");
    command
        ->add_option("--max-cpu", request.max_cpu,
                     "give a delay up that takes more than N CPUs [half of them]")
        ->type_name("N")
        ->check(positive_number());
    add_duration(
        *command, "--slice", arguments->slice,
        "up to 50ms: of all targets at once, switched by the clock [chosen]; longer: of one arm of "
        "one target after the other");
    add_duration(*command, "--settle", arguments->settle,
                 "time left out after each change of long slices [50ms]");
    add_live(*command, *arguments);
    command->add_flag_callback(
        "--no-off", [&request] { request.off_arm = false; },
        "never take the probes out in between");
    add_no_children(*command, request.session.follow_children);
    add_fleet_options(*command, *places, arguments->fleet);
    add_engine(*command, request.session.engine);
    add_gate_options(*command, arguments->gate);
    add_result_options(*command, arguments->files, arguments->output);
    limit_ab(*command);
    command->footer(
        "Examples:\n"
        "  speedbump experiment --pid $(pidof redis-server) --progress "
        "native:exe:processCommand targets.txt\n"
        "  speedbump experiment -p 12 --progress python:app:handle --precision 2% -o r.json "
        "--html r.html targets.txt\n"
        "  speedbump experiment --at 'ssh node1' --at 'ssh node2' --exe server --progress "
        "native:exe:handle targets.txt\n"
        "  speedbump experiment --ab 12 34 --progress native:exe:handle --fail-if-worse 1%\n"
        "The exit status is 1 when a control failed or the experiment could not be finished.");
    command->final_callback(
        [arguments, &action] { action = [arguments] { return run(*arguments); }; });
}

} // namespace speedbump::cli
