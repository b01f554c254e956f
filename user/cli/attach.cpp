// SPDX-License-Identifier: MIT
#include <memory>

#include "cli/command.h"
#include "cli/exit_status.h"
#include "cli/session_report.h"
#include "lifecycle/signals.h"

namespace speedbump::cli {

namespace {

Result<int> attach(const SessionArguments& arguments) {
    auto signals = lifecycle::Signals::install();
    if (!signals) return std::move(signals).error();
    SessionReport report(arguments, "attach");
    const auto reason = lifecycle::watch_session(watch_request(arguments), report, *signals, {});
    if (!reason) return reason.error();
    return int{kDone};
}

} // namespace

void add_attach(CLI::App& app, Action& action) {
    auto arguments = std::make_shared<SessionArguments>();
    CLI::App* command =
        app.add_subcommand("attach", "slow a running process tree down until Ctrl-C");
    auto* places = command->add_option_group("processes");
    add_pids(*places, arguments->session.pids);
    places->add_option("--cgroup", arguments->session.cgroup, "all processes of a cgroup (v2)")
        ->type_name("PATH");
    places->require_option(1, 0);
    add_session_options(*command, *arguments);
    command->footer(
        "Examples:\n"
        "  speedbump attach --pid $(pidof redis-server) targets.txt\n"
        "  speedbump attach -p 12 -p 13 --delay 50us --duration 30s targets.txt\n"
        "  speedbump attach --cgroup system.slice/nginx.service --json targets.txt | jq .all");
    command->final_callback(
        [arguments, &action] { action = [arguments] { return attach(*arguments); }; });
}

} // namespace speedbump::cli
