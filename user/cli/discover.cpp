// SPDX-License-Identifier: MIT
#include <poll.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "cli/command.h"
#include "cli/exit_status.h"
#include "cli/look.h"
#include "cli/options.h"
#include "cli/output.h"
#include "discover/native_survey.h"
#include "discover/stack_survey.h"
#include "engine/features.h"
#include "lifecycle/signals.h"
#include "process/ownership.h"
#include "report/discovery.h"
#include "targets/parser.h"
#include "util/clock.h"
#include "util/log.h"

namespace speedbump::cli {

namespace {

struct DiscoverArguments {
    std::vector<pid_t> pids;
    bool follow_children = true;
    std::optional<std::chrono::nanoseconds> duration;
    std::vector<std::string> native;
    bool no_native = false;
    bool no_python = false;
    // Percent of one CPU: what a program can't be told from one that nobody looks at.
    double budget = 1;
    unsigned rate = 99;
    size_t top = 20;
    std::string collapsed_path;
    std::string targets_path;
    std::string html_path;
    std::string experiment_path;
    OutputArguments output;
};

Result<targets::TargetsFile> native_lines(const std::vector<std::string>& globs) {
    std::string text;
    for (const std::string& glob : globs) {
        const bool names_file = glob.find(':') != std::string::npos;
        text += (names_file ? "+" : "+*:") + glob + "\n";
    }
    if (globs.empty()) text = "+*:*\n";
    auto parsed = targets::parse_targets(text, "--native");
    if (!parsed.errors.empty())
        return make_error(ErrorKind::kUsage, "--native: " + parsed.errors.front().message);
    return std::move(parsed.file);
}

bool is_readable(int fd) {
    pollfd wait{fd, POLLIN, 0};
    return poll(&wait, 1, 0) > 0;
}

// Samples, and counts afterwards: a probe takes longer than many a function, so that samples taken
// beside it would show where the probes are.
Result<void> look(const DiscoverArguments& arguments, const targets::TargetsFile& lines,
                  const std::function<bool()>& interrupted, report::Discovery& discovery) {
    const auto duration = arguments.duration.value_or(std::chrono::seconds(10));
    discover::StackSurveyOptions sampling;
    sampling.list = [&arguments] {
        return arguments.follow_children ? with_descendants(arguments.pids) : arguments.pids;
    };
    sampling.rate = arguments.rate;
    sampling.with_python = !arguments.no_python;
    std::optional<engine::Features> features; // of what looks at native functions
    if (!arguments.no_native) features = engine::probe_features();
    sampling.with_native = features && engine::require_attach_rights(*features);
    sampling.duration = sampling.with_native ? duration / 2 : duration;
    std::thread sampler([&] {
        if (sampling.with_python || sampling.with_native)
            discovery.stacks = discover::survey_stacks(sampling, interrupted);
    });
    std::optional<Result<discover::NativeSurvey>> survey;
    if (features)
        survey = discover::NativeSurvey::prepare(
            {discovery.pids, arguments.budget / 100, !arguments.native.empty()}, *features, lines);
    sampler.join();
    if (!survey) return {};
    if (!*survey) return survey->error();
    auto counted = (*survey)->count(discovery.stacks.profile, duration / 2, interrupted);
    if (!counted) return std::move(counted).error();
    discovery.survey = std::move(*counted);
    return {};
}

Result<int> discover(const DiscoverArguments& arguments) {
    std::optional<report::Measured> measured;
    if (!arguments.experiment_path.empty()) {
        auto document = experiment::load_document(arguments.experiment_path);
        if (!document) return std::move(document).error();
        measured = {std::move(*document), arguments.experiment_path};
    }
    auto output = Output::open(arguments.output);
    if (!output) return std::move(output).error();
    auto targets_file = OutputFile::open(arguments.targets_path);
    if (!targets_file) return std::move(targets_file).error();
    auto collapsed_file = OutputFile::open(arguments.collapsed_path);
    if (!collapsed_file) return std::move(collapsed_file).error();
    auto html_file = OutputFile::open(arguments.html_path);
    if (!html_file) return std::move(html_file).error();
    const auto lines = native_lines(arguments.native);
    if (!lines) return lines.error();
    report::Discovery discovery;
    discovery.top = arguments.top;
    discovery.counted_only = !arguments.native.empty();
    if (auto ours = process::require_ours(arguments.pids); !ours) return std::move(ours).error();
    discovery.pids = arguments.follow_children ? with_descendants(arguments.pids) : arguments.pids;
    if (discovery.pids.empty()) return make_error(ErrorKind::kNotFound, "there is no such process");
    auto signals = lifecycle::Signals::install();
    if (!signals) return std::move(signals).error();
    const std::function<bool()> interrupted = [&signals] { return is_readable(signals->fd()); };
    const Clock::time_point start = Clock::now();
    const auto counted = look(arguments, *lines, interrupted, discovery);
    discovery.duration = Clock::now() - start;
    if (!counted && discovery.stacks.profile.stacks() == 0) return counted.error();
    if (!counted) discovery.notes.push_back("native functions: " + counted.error().message);

    const report::Context context = make_context("discover");
    if (arguments.output.json)
        output->write_line(report::discovery_json(context, discovery));
    else
        output->write(report::discovery_text(discovery, output->style(), arguments.output.verbose));
    // All of them are tried: a full disk must not take the others, too.
    const auto write = [](OutputFile& file, const auto& make) {
        return file.is_open() ? file.write(make()) : Result<void>();
    };
    const auto targets_written =
        write(*targets_file, [&] { return report::discovery_targets(discovery); });
    const auto collapsed_written =
        write(*collapsed_file, [&] { return report::discovery_collapsed(discovery); });
    const auto html_written =
        write(*html_file, [&] { return report::discovery_html(context, discovery, measured); });
    for (const auto& written : {targets_written, collapsed_written, html_written, output->finish()})
        if (!written) return written.error();
    const bool found_any = discovery.stacks.profile.stacks() > 0 ||
                           (discovery.survey && discovery.survey->added_cpu > 0);
    if (!found_any)
        return make_error(ErrorKind::kNothingMatched, "nothing was called or running in that time");
    return int{kDone};
}

} // namespace

void add_discover(CLI::App& app, Action& action) {
    auto arguments = std::make_shared<DiscoverArguments>();
    CLI::App* command =
        app.add_subcommand("discover", "find out what there is to slow; write a targets file");
    add_pids(*command, arguments->pids)->required();
    add_no_children(*command, arguments->follow_children);
    add_duration(*command, "--for", arguments->duration,
                 "how long to look (10s): half of it samples, half of it counts");
    command
        ->add_option("--native", arguments->native,
                     "count only these native functions: SYMBOL or BINARY:SYMBOL; may be repeated")
        ->type_name("GLOB")
        ->allow_extra_args(false);
    auto* no_native = command->add_flag("--no-native", arguments->no_native,
                                        "neither count nor sample native functions");
    command->add_flag("--no-python", arguments->no_python, "don't read Python stacks")
        ->excludes(no_native);
    command
        ->add_option("--budget", arguments->budget, "percent of one CPU that counting may cost (1)")
        ->type_name("PERCENT")
        ->check(number_between(0.1, 100));
    command->add_option("--rate", arguments->rate, "samples of each thread per second (99)")
        ->type_name("N")
        ->check(number_between(1, 10000));
    command->add_option("--top", arguments->top, "candidates of each runtime (20; 0: all)")
        ->type_name("N");
    command->add_option("-o,--output", arguments->targets_path, "write a targets file")
        ->type_name("FILE");
    command
        ->add_option("--collapsed", arguments->collapsed_path,
                     "write whole stacks as flame graph tools take them")
        ->type_name("FILE");
    auto* html = command
                     ->add_option("--html", arguments->html_path,
                                  "write a page with the stacks as a picture, and the tables")
                     ->type_name("FILE");
    command
        ->add_option("--experiment", arguments->experiment_path,
                     "colour the picture by what this result of an experiment says")
        ->type_name("FILE")
        ->needs(html);
    command->add_flag("--json", arguments->output.json,
                      "a JSON document instead of tables (docs/json.md)");
    command->add_flag("-v,--verbose", arguments->output.verbose,
                      "name the functions that were never called");
    command->footer(
        "For half of the time whole stacks, native and Python, are sampled; then the calls of "
        "native\n"
        "functions are counted by probes, those seen in the stacks first. Nothing is delayed.\n"
        "Examples:\n"
        "  speedbump discover --pid $(pidof redis-server) --for 10s -o targets.txt\n"
        "  speedbump discover --pid 1234 --html map.html --experiment result.json\n"
        "  speedbump discover --pid $(pidof -s gunicorn) --native 'libsqlite3*:*'");
    command->final_callback(
        [arguments, &action] { action = [arguments] { return discover(*arguments); }; });
}

} // namespace speedbump::cli
