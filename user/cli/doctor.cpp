// SPDX-License-Identifier: MIT
#include <memory>

#include "cli/command.h"
#include "cli/exit_status.h"
#include "cli/look.h"
#include "cli/output.h"
#include "engine/code_access.h"
#include "engine/features.h"
#include "engine/python/cores.h"
#include "report/check.h"

namespace speedbump::cli {

namespace {

struct DoctorArguments {
    std::vector<pid_t> pids;
    OutputArguments output;
};

Result<int> doctor(const DoctorArguments& arguments) {
    auto output = Output::open(arguments.output);
    if (!output) return std::move(output).error();
    const engine::Features features = engine::probe_features();
    std::vector<engine::Check> checks = engine::check_host(features);
    checks.push_back(engine::check_cores(engine::core_directories()));
    checks.push_back(engine::check_code_access());
    for (const pid_t pid : arguments.pids) {
        const std::vector<engine::Check> more = check_process(pid);
        checks.insert(checks.end(), more.begin(), more.end());
    }
    if (arguments.output.json) {
        output->write_line(report::doctor_json(make_context("doctor"), checks));
    } else {
        output->write(report::doctor_text(checks, output->style()));
    }
    if (auto written = output->finish(); !written) return std::move(written).error();
    if (auto rights = engine::require_attach_rights(features); !rights) {
        return std::move(rights).error();
    }
    return int{kDone};
}

} // namespace

void add_doctor(CLI::App& app, Action& action) {
    auto arguments = std::make_shared<DoctorArguments>();
    CLI::App* command =
        app.add_subcommand("doctor", "what works on this host, what does not, and what mends it");
    add_pids(*command, arguments->pids);
    add_output_options(*command, arguments->output);
    command->footer(
        "The exit status is 0 when attach works here, else that of attach.\n"
        "Example:\n"
        "  speedbump doctor --pid $(pidof redis-server)");
    command->final_callback(
        [arguments, &action] { action = [arguments] { return doctor(*arguments); }; });
}

} // namespace speedbump::cli
