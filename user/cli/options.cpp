// SPDX-License-Identifier: MIT
#include "cli/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

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

namespace {

CLI::Validator checked(std::string what, std::function<bool(const std::string&)> is_good) {
    return {[what = std::move(what), is_good = std::move(is_good)](std::string& text) {
                return is_good(text) ? std::string() : "'" + text + "' is not " + what;
            },
            ""};
}

// The whole of the text as a number.
std::optional<double> number(const std::string& text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

} // namespace

Result<double> parse_share(const std::string& option, const std::string& text) {
    size_t used = 0;
    double value = 0;
    try {
        value = std::stod(text, &used);
    } catch (const std::exception&) {
        used = 0;
    }
    const bool is_percent = used > 0 && text.substr(used) == "%";
    if (used == 0 || (used != text.size() && !is_percent) || !(value > 0) || value > 1e6)
        return make_error(ErrorKind::kUsage, option + ": '" + text + "' is not a share such as 5%");
    return is_percent ? value / 100 : value;
}

CLI::Validator number_between(double min, double max) {
    return checked(fmt::format("a number from {} to {}", min, max),
                   [min, max](const std::string& text) {
                       const auto value = number(text);
                       return value && *value >= min && *value <= max;
                   });
}

CLI::Validator positive_number() {
    return checked("a number above 0", [](const std::string& text) {
        const double value = number(text).value_or(0);
        return value > 0 && std::isfinite(value);
    });
}

CLI::Validator process_id() {
    constexpr double kMaxPids = 1 << 22; // PID_MAX_LIMIT
    return checked("a process ID", [](const std::string& text) {
        const auto value = number(text);
        return value && *value >= 1 && *value <= kMaxPids && std::floor(*value) == *value;
    });
}

CLI::Validator one_of(std::vector<std::string> words) {
    return checked(words.size() == 1
                       ? words.front()
                       : fmt::format("{} or {}", fmt::join(words.begin(), words.end() - 1, ", "),
                                     words.back()),
                   [words](const std::string& text) {
                       return std::find(words.begin(), words.end(), text) != words.end();
                   });
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
        ->check(process_id());
}

CLI::Option* add_no_children(CLI::App& command, bool& follow_children) {
    return command.add_flag_callback(
        "--no-children", [&follow_children] { follow_children = false; },
        "leave the descendants of the processes alone");
}

void add_session_options(CLI::App& command, SessionArguments& arguments) {
    session::SessionOptions& session = arguments.session;
    command.add_option("targets", arguments.targets_path, "targets file")
        ->type_name("TARGETS")
        ->required();
    add_no_children(command, session.follow_children);
    command.add_flag("--paused", session.start_paused, "start without delays");
    command.add_flag("--entry-only", session.entry_only,
                     "probe the first instruction, also where a later one is cheaper");
    add_duration(command, "--delay", session.defaults.delay, "delay of lines that set none [1us]",
                 targets::kMaxDelay);
    command
        .add_option("--every", session.defaults.every,
                    "delay each Nth call, for lines that set none")
        ->type_name("N")
        ->check(positive_number());
    add_duration(command, "--start", session.defaults.start,
                 "first delay after TIME, for lines that set none");
    add_duration(command, "--duration", session.defaults.duration,
                 "last delay after TIME, for lines that set none; then end");
    add_choice<session::EngineChoice>(command, "--engine", session.engine,
                                      {{"auto", session::EngineChoice::kAuto},
                                       {"bpf", session::EngineChoice::kBpf},
                                       {"kmod", session::EngineChoice::kKmod},
                                       {"inprocess", session::EngineChoice::kInprocess}},
                                      "auto, bpf, kmod or inprocess")
        ->type_name("ENGINE");
    add_choice<session::MissingPolicy>(command, "--missing", session.missing,
                                       {{"error", session::MissingPolicy::kError},
                                        {"warn", session::MissingPolicy::kWarn},
                                        {"ignore", session::MissingPolicy::kIgnore}},
                                       "what a line that matches nothing is: error, warn or ignore")
        ->type_name("POLICY");
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
