// SPDX-License-Identifier: MIT
#include <cerrno>
#include <memory>

#include "cli/command.h"
#include "cli/exit_status.h"
#include "cli/session_report.h"
#include "lifecycle/child.h"
#include "lifecycle/signals.h"
#include "util/log.h"

namespace speedbump::cli {

namespace {

Result<int> run(SessionArguments arguments, const std::vector<std::string>& program) {
    if (program.empty()) {
        return make_error(ErrorKind::kUsage, "run needs a program: run TARGETS -- CMD ARGS...");
    }
    if (const auto found = lifecycle::find_program(program[0]); !found) {
        log::error(found.error().message);
        return lifecycle::exit_status_of_exec_error(found.error().error_number);
    }
    // Before anything of BPF is open, so that the program inherits none of it.
    auto child = lifecycle::HeldChild::start(program);
    if (!child) return std::move(child).error();
    auto signals = lifecycle::Signals::install_and_forward(child->pid());
    if (!signals) return std::move(signals).error();
    arguments.session.pids = {child->pid()};
    arguments.session.run_command = program;

    std::optional<int> exec_failure;
    bool is_released = false;
    lifecycle::WatchHooks hooks;
    hooks.after_arming = [&](session::Session& session) -> Result<void> {
        const auto python_path_entry = session.python_path_entry();
        if (!python_path_entry) return python_path_entry.error();
        auto released = child->release(*python_path_entry);
        if (!released && released.error().error_number != EPIPE) // else it has ended
            exec_failure = lifecycle::exit_status_of_exec_error(released.error().error_number);
        is_released = released.has_value();
        return released;
    };
    hooks.program_ended = [&] {
        if (!child->poll()) return false;
        signals->stop_forwarding();
        return true;
    };
    hooks.lasts_as_program = true;
    SessionReport report(arguments, "run");
    const auto reason = lifecycle::watch_session(watch_request(arguments), report, *signals, hooks);
    if (exec_failure) {
        log::error(program[0] + ": " + reason.error().message);
        return *exec_failure;
    }
    if (!reason && !is_released) {
        // Ctrl-C while everything was attached: the program goes with it, or is never started.
        if (const int signal = signals->stop_signal()) return kSignalBase + signal;
        if (const auto ended = child->poll()) return *ended;
    }
    // The program runs all the same with --missing=ignore: its status counts. It may have ended
    // and still be a moment away from being reaped.
    const bool only_unmatched = !reason && reason.error().kind == ErrorKind::kNothingMatched;
    if (only_unmatched && is_released) {
        log::warning(reason.error().message);
        return child->wait();
    }
    if (!reason) return reason.error();
    return child->wait();
}

} // namespace

void add_run(CLI::App& app, Action& action, const std::vector<std::string>& program) {
    auto arguments = std::make_shared<SessionArguments>();
    CLI::App* command =
        app.add_subcommand("run", "start a program slowed from its first instruction");
    add_session_options(*command, *arguments);
    command->footer(
        "The program follows a \"--\": speedbump run [OPTIONS] TARGETS -- CMD ARGS...\n"
        "The exit status is the program's own; 126 and 127 as in a shell, 128+N for signal N.\n"
        "Examples:\n"
        "  speedbump run targets.txt -- ./server --port 8080\n"
        "  speedbump run --delay 20us -o result.json --json targets.txt -- make check");
    command->final_callback([arguments, &action, &program] {
        action = [arguments, &program] { return run(*arguments, program); };
    });
}

} // namespace speedbump::cli
