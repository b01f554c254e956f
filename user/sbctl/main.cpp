// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "sbctl/client.h"
#include "targets/parser.h"
#include "util/text.h"

namespace {

using namespace speedbump;
using nlohmann::json;
using std::chrono::nanoseconds;

enum ExitStatus : int { kDone = 0, kRefused = 1, kWrongUsage = 2 };

// The options of all commands; each command reads its own.
struct Options {
    std::string target;
    std::string delay;
    pid_t pid = 0;
    bool as_json = false;

    // Checked when they were read (kDuration).
    nanoseconds delay_value() const { return targets::parse_duration(delay).value(); }
    std::optional<pid_t> pid_filter() const {
        return pid ? std::optional<pid_t>(pid) : std::nullopt;
    }
};

using Action = std::function<Result<void>()>;

const CLI::Validator kDuration(
    [](std::string& text) -> std::string {
        const auto duration = targets::parse_duration(text);
        return duration ? std::string() : duration.error().message;
    },
    "DELAY");

json to_json(const sbctl::Target& target) {
    json object = {{"target", printable(target.name)},
                   {"delay_ns", target.delay.count()},
                   {"hits", target.hits},
                   {"delays", target.delays},
                   {"requested_ns", target.requested.count()},
                   {"measured_ns", target.measured.count()},
                   {"offset", target.offset},
                   {"owned", target.is_owned}};
    if (target.pid) object["pid"] = *target.pid;
    return object;
}

Result<void> print_list(bool as_json) {
    auto targets = sbctl::list();
    if (!targets) return std::move(targets).error();
    if (as_json) {
        json rows = json::array();
        for (const auto& target : *targets) rows.push_back(to_json(target));
        fmt::print("{}\n", json{{"schema", "speedbump/sbctl-list/1"}, {"targets", rows}}.dump(2));
        return {};
    }
    size_t width = std::string_view("TARGET").size();
    for (auto& target : *targets) {
        target.name = printable(target.name);
        width = std::max(width, target.name.size());
    }
    fmt::print("{:<{}}  {:>10}  {:>12}  {:>12}  {:>14}  {}\n", "TARGET", width, "DELAY", "HITS",
               "DELAYS", "DELAYED", "PID");
    for (const auto& target : *targets) {
        fmt::print("{:<{}}  {:>10}  {:>12}  {:>12}  {:>14}  {}\n", target.name, width,
                   targets::format_duration(target.delay), target.hits, target.delays,
                   targets::format_duration(target.measured),
                   target.pid ? std::to_string(*target.pid) : "-");
    }
    return {};
}

Result<void> print_status(bool as_json) {
    const auto status = sbctl::status();
    if (!status) return status.error();
    if (as_json) {
        const json document = {{"schema", "speedbump/sbctl-status/1"},
                               {"enabled", status->enabled},
                               {"targets", status->targets},
                               {"max_targets", status->max_targets},
                               {"total_hits", status->hits},
                               {"total_delay_ns", status->delay.count()},
                               {"default_delay_ns", status->default_delay.count()}};
        fmt::print("{}\n", document.dump(2));
        return {};
    }
    fmt::print("enabled:        {}\n", status->enabled ? "yes" : "no");
    fmt::print("targets:        {} of {}\n", status->targets, status->max_targets);
    fmt::print("hits:           {}\n", status->hits);
    fmt::print("delayed:        {}\n", targets::format_duration(status->delay));
    fmt::print("default delay:  {}\n", targets::format_duration(status->default_delay));
    return {};
}

CLI::App* add_command(CLI::App& app, Action& chosen, const std::string& name,
                      const std::string& help, Action action) {
    CLI::App* command = app.add_subcommand(name, help);
    command->callback([&chosen, action = std::move(action)] { chosen = action; });
    return command;
}

void add_target(CLI::App* command, Options& options) {
    command->add_option("TARGET", options.target, "PATH:SYMBOL or PATH:0xOFFSET")->required();
}

void add_pid(CLI::App* command, Options& options) {
    command->add_option("--pid", options.pid, "delay this process and its descendants only")
        ->check(CLI::PositiveNumber);
}

void add_commands(CLI::App& app, Options& options, Action& chosen) {
    CLI::App* command = add_command(app, chosen, "add", "slow a function", [&options] {
        std::optional<nanoseconds> delay;
        if (!options.delay.empty()) delay = options.delay_value();
        return sbctl::add(options.target, delay, options.pid_filter());
    });
    add_target(command, options);
    command->add_option("DELAY", options.delay, "such as 10us; else the default delay")
        ->check(kDuration);
    add_pid(command, options);

    command = add_command(app, chosen, "remove", "slow it no more",
                          [&options] { return sbctl::remove(options.target); });
    add_target(command, options);

    command = add_command(app, chosen, "update", "change a target's delay", [&options] {
        return sbctl::update(options.target, options.delay_value(), options.pid_filter());
    });
    add_target(command, options);
    command->add_option("DELAY", options.delay, "such as 10us")->required()->check(kDuration);
    add_pid(command, options);

    command = add_command(app, chosen, "delay", "set the delay of targets that name none",
                          [&options] { return sbctl::set_default_delay(options.delay_value()); });
    command->add_option("DELAY", options.delay, "such as 10us")->required()->check(kDuration);

    add_command(app, chosen, "enable", "switch all delays on",
                [] { return sbctl::set_enabled(true); });
    add_command(app, chosen, "disable", "switch all delays off, and keep the targets",
                [] { return sbctl::set_enabled(false); });
    add_command(app, chosen, "clear", "remove all targets", [] { return sbctl::clear(); });
    command = add_command(app, chosen, "list", "print the targets and their counts",
                          [&options] { return print_list(options.as_json); });
    command->add_flag("--json", options.as_json, "as one JSON document");
    command = add_command(app, chosen, "status", "print the state of the module",
                          [&options] { return print_status(options.as_json); });
    command->add_flag("--json", options.as_json, "as one JSON document");
}

} // namespace

int main(int argc, char** argv) {
    CLI::App app("Controls the delay kernel module speed_bump.", "sbctl");
    app.require_subcommand(1);
    app.footer(
        "Examples:\n"
        "  sbctl add /usr/bin/redis-server:processCommand 20us --pid=1234\n"
        "  sbctl enable; sbctl list; sbctl disable\n"
        "Exit status: 0 done, 1 refused (the message says why), 2 wrong usage.");
    Options options;
    Action chosen;
    add_commands(app, options, chosen);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? kDone : kWrongUsage;
    }
    const Result<void> result = chosen();
    if (result) return kDone;
    fmt::print(stderr, "sbctl: {}\n", result.error().message);
    if (!result.error().hint.empty()) fmt::print(stderr, "sbctl: try: {}\n", result.error().hint);
    return kRefused;
}
