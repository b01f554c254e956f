// SPDX-License-Identifier: MIT
#include "cli/live.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "cli/exit_status.h"
#include "cli/output.h"
#include "control/client.h"
#include "util/control_directory.h"

namespace speedbump::cli {

namespace {

// Taking many thousand probes out takes its time.
constexpr auto kPatience = std::chrono::seconds(60);

Result<pid_t> choose_session(pid_t named) {
    if (named != 0) return named;
    auto sessions = find_sessions();
    if (!sessions) return std::move(sessions).error();
    if (sessions->empty()) {
        Error error = make_error(ErrorKind::kNotFound, "no live session of this user");
        if (::geteuid() != 0) error.hint = "sudo speedbump status, for the sessions of root";
        return error;
    }
    if (sessions->size() > 1) {
        return make_error(ErrorKind::kUsage, fmt::format("{} live sessions: {}", sessions->size(),
                                                         fmt::join(*sessions, ", ")))
            .with_hint(fmt::format("--session {}", sessions->front()));
    }
    return sessions->front();
}

} // namespace

void add_live_options(CLI::App& command, LiveArguments& arguments) {
    command
        .add_option("--session", arguments.session,
                    "the PID of the session's speedbump; needed when there are several")
        ->type_name("PID")
        ->check(process_id());
    add_output_options(command, arguments.output);
}

Result<std::vector<pid_t>> find_sessions() {
    const auto directory = control_directory();
    if (!directory) return directory.error();
    return control::live_sessions(*directory);
}

Result<int> request_of_session(const LiveArguments& arguments, const std::string& request,
                               const std::string& told) {
    auto output = Output::open(arguments.output);
    if (!output) return std::move(output).error();
    const auto pid = choose_session(arguments.session);
    if (!pid) return pid.error();
    const auto directory = control_directory();
    if (!directory) return directory.error();
    const auto answer = control::ask_session(*directory, *pid, request, kPatience);
    if (!answer) return answer.error();
    if (arguments.output.json) {
        output->write_line(*answer);
    } else if (!arguments.output.quiet) {
        output->write_line(fmt::format("session {} {}", *pid, told));
    }
    if (auto written = output->finish(); !written) return std::move(written).error();
    return int{kDone};
}

} // namespace speedbump::cli
