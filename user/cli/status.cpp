// SPDX-License-Identifier: MIT
#include "report/status.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/exit_status.h"
#include "cli/live.h"
#include "cli/output.h"
#include "control/client.h"
#include "util/control_directory.h"
#include "util/log.h"

namespace speedbump::cli {

namespace {

// A session that hangs must not hide the others for long.
constexpr auto kPatience = std::chrono::seconds(3);

struct StatusArguments {
    pid_t session = 0; // 0: all
    OutputArguments output;
};

// The session's own document, out of the answer that carries it.
Result<std::string> ask_status(pid_t pid) {
    const auto directory = control_directory();
    if (!directory) return directory.error();
    const auto answer = control::ask_session(*directory, pid, "status\n", kPatience);
    if (!answer) return answer.error();
    const auto document = nlohmann::ordered_json::parse(*answer, nullptr, false);
    const auto found = document.find("session");
    if (found == document.end()) {
        return make_error(ErrorKind::kInvalid, fmt::format("session {} tells nothing", pid));
    }
    return found->dump();
}

// With --json each session is a line of its own.
Result<void> show_one(Output& output, pid_t pid) {
    const auto document = ask_status(pid);
    if (!document) return document.error();
    if (output.arguments().json) {
        output.write_line(*document);
        return {};
    }
    const auto live = report::parse_session_json(*document);
    if (!live) return live.error();
    output.write(report::status_detail(*live, output.style()));
    return {};
}

Result<void> show_all(Output& output) {
    const auto pids = find_sessions();
    if (!pids) return pids.error();
    std::vector<report::LiveSession> sessions;
    std::vector<pid_t> silent;
    for (const pid_t pid : *pids) {
        const auto document = ask_status(pid);
        if (!document && document.error().kind == ErrorKind::kNotFound) continue; // just ended
        if (!document) {
            silent.push_back(pid);
            log::warning(document.error().message);
            continue;
        }
        if (output.arguments().json) {
            output.write_line(*document);
            continue;
        }
        auto live = report::parse_session_json(*document);
        if (!live) return std::move(live).error();
        sessions.push_back(std::move(*live));
    }
    if (output.arguments().json) return {};
    if (sessions.empty() && silent.empty()) {
        log::info("no live session of this user");
    } else {
        output.write(report::status_list(sessions, silent, output.style()));
    }
    return {};
}

Result<int> status(const StatusArguments& arguments) {
    auto output = Output::open(arguments.output);
    if (!output) return std::move(output).error();
    const auto shown =
        arguments.session != 0 ? show_one(*output, arguments.session) : show_all(*output);
    if (!shown) return shown.error();
    if (auto written = output->finish(); !written) return std::move(written).error();
    return int{kDone};
}

} // namespace

void add_status(CLI::App& app, Action& action) {
    auto arguments = std::make_shared<StatusArguments>();
    CLI::App* command = app.add_subcommand("status", "list live sessions, or show one");
    command->add_option("session", arguments->session, "the PID of one session's speedbump")
        ->type_name("SESSION")
        ->check(process_id());
    add_output_options(*command, arguments->output);
    command->footer(
        "Examples:\n"
        "  speedbump status\n"
        "  speedbump status 1234\n"
        "  speedbump status --json | jq '.pid, .all.delays'");
    command->final_callback(
        [arguments, &action] { action = [arguments] { return status(*arguments); }; });
}

} // namespace speedbump::cli
