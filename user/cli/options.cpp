// SPDX-License-Identifier: MIT
#include "cli/options.h"

#include <map>

#include "targets/parser.h"
#include "util/log.h"

namespace speedbump::cli {

CLI::Option* add_duration(CLI::App& command, const std::string& names,
                          std::optional<std::chrono::nanoseconds>& value,
                          const std::string& description,
                          std::optional<std::chrono::nanoseconds> longest) {
    return command
        .add_option_function<std::string>(
            names,
            [&value, names, longest](const std::string& text) {
                const auto duration = targets::parse_duration(text);
                if (!duration) throw CLI::ValidationError(names, duration.error().message);
                if (longest && *duration > *longest) {
                    throw CLI::ValidationError(names, text +
                                                          " is more than the longest possible, " +
                                                          targets::format_duration(*longest));
                }
                value = *duration;
            },
            description)
        ->type_name("TIME");
}

void add_verbosity(CLI::App& command, OutputArguments& arguments) {
    auto* verbose = command.add_flag("-v,--verbose", arguments.verbose, "say more");
    command.add_flag("-q,--quiet", arguments.quiet, "no progress, only results and warnings")
        ->excludes(verbose);
    command.parse_complete_callback([&arguments] {
        if (arguments.verbose) log::set_level(log::Level::kDebug);
        if (arguments.quiet) log::set_level(log::Level::kWarning);
    });
}

void add_output_options(CLI::App& command, OutputArguments& arguments) {
    command.add_flag("--json", arguments.json, "JSON documents instead of tables (docs/json.md)");
    command.add_option("-o,--output", arguments.file, "write results to FILE instead of stdout")
        ->type_name("FILE");
    add_verbosity(command, arguments);
}

CLI::Option* add_pids(CLI::App& command, std::vector<pid_t>& pids) {
    return command.add_option("-p,--pid", pids, "a process, with its descendants; may be repeated")
        ->type_name("PID")
        ->allow_extra_args(false)
        ->delimiter(',')
        ->check(CLI::Range(pid_t{1}, pid_t{1} << 22));
}

void add_session_options(CLI::App& command, SessionArguments& arguments) {
    session::SessionOptions& session = arguments.session;
    command.add_option("targets", arguments.targets_path, "targets file")
        ->type_name("TARGETS")
        ->required();
    command.add_flag("!--no-children", session.follow_children,
                     "leave the descendants of the processes alone");
    command.add_flag("--paused", session.start_paused, "start without delays");
    command.add_flag("--entry-only", session.entry_only,
                     "probe the first instruction, also where a later one is cheaper");
    add_duration(command, "--delay", session.defaults.delay, "delay of lines that set none [1us]",
                 targets::kMaxDelay);
    command
        .add_option("--every", session.defaults.every,
                    "delay each Nth call, for lines that set none")
        ->type_name("N")
        ->check(CLI::PositiveNumber);
    add_duration(command, "--start", session.defaults.start,
                 "first delay after TIME, for lines that set none");
    add_duration(command, "--duration", session.defaults.duration,
                 "last delay after TIME, for lines that set none; then end");
    command.add_option("--engine", session.engine, "auto, bpf or kmod")
        ->type_name("ENGINE")
        ->transform(CLI::CheckedTransformer(
                        std::map<std::string, session::EngineChoice>{
                            {"auto", session::EngineChoice::kAuto},
                            {"bpf", session::EngineChoice::kBpf},
                            {"kmod", session::EngineChoice::kKmod}},
                        CLI::ignore_case)
                        .description(""));
    command
        .add_option("--missing", session.missing,
                    "what a line that matches nothing is: error, warn or ignore")
        ->type_name("POLICY")
        ->transform(CLI::CheckedTransformer(
                        std::map<std::string, session::MissingPolicy>{
                            {"error", session::MissingPolicy::kError},
                            {"warn", session::MissingPolicy::kWarn},
                            {"ignore", session::MissingPolicy::kIgnore}},
                        CLI::ignore_case)
                        .description(""));
    command
        .add_option_function<std::string>(
            "--stats",
            [&arguments](const std::string& text) {
                const auto interval = targets::parse_duration(text);
                if (!interval) throw CLI::ValidationError("--stats", interval.error().message);
                if (*interval < std::chrono::milliseconds(10)) {
                    throw CLI::ValidationError("--stats", text + " is less than 10ms");
                }
                arguments.stats_interval = *interval;
            },
            "time between two looks at the counters [1s]")
        ->type_name("TIME");
    command
        .add_option_function<std::string>(
            "--control",
            [&arguments](const std::string& text) {
                const std::string prefix = "fifo:";
                if (!text.starts_with(prefix) || text.size() == prefix.size()) {
                    throw CLI::ValidationError("--control", "'" + text + "' is not fifo:PATH");
                }
                arguments.control_fifo = text.substr(prefix.size());
            },
            "take pause, resume, set and detach from a fifo as well")
        ->type_name("fifo:PATH");
    add_output_options(command, arguments.output);
}

} // namespace speedbump::cli
