// SPDX-License-Identifier: MIT
#include <memory>

#include "cli/command.h"
#include "cli/live.h"
#include "control/protocol.h"

namespace speedbump::cli {

namespace {

struct SetArguments {
    LiveArguments live;
    std::string pattern;
    std::vector<std::string> settings;
};

Result<int> set(const SetArguments& arguments) {
    const auto request = control::format_set_request(arguments.pattern, arguments.settings);
    if (!request) return request.error();
    std::string told = "changed:";
    for (const std::string& setting : arguments.settings) told += " " + setting;
    return request_of_session(arguments.live, *request, told);
}

} // namespace

void add_set(CLI::App& app, Action& action) {
    auto arguments = std::make_shared<SetArguments>();
    CLI::App* command = app.add_subcommand("set", "change delays of a live session");
    command
        ->add_option("pattern", arguments->pattern,
                     "targets by name, FILE:NAME, or their line; a glob")
        ->type_name("PATTERN")
        ->required();
    command
        ->add_option("settings", arguments->settings,
                     "delay=TIME, every=N, start=TIME, duration=TIME, as in a targets file")
        ->type_name("KEY=VALUE")
        ->required();
    add_live_options(*command, arguments->live);
    command->footer(
        "Examples:\n"
        "  speedbump set '*' delay=20us\n"
        "  speedbump set --session 1234 '*redis-server:*Command' delay=1ms every=10");
    command->final_callback(
        [arguments, &action] { action = [arguments] { return set(*arguments); }; });
}

} // namespace speedbump::cli
