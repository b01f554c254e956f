// SPDX-License-Identifier: MIT
#include <memory>

#include "cli/command.h"
#include "cli/exit_status.h"
#include "cli/output.h"
#include "engine/features.h"
#include "report/check.h"

namespace speedbump::cli {

namespace {

Result<int> calibrate(const OutputArguments& arguments) {
    auto output = Output::open(arguments);
    if (!output) return std::move(output).error();
    const engine::Features features = engine::probe_features();
    if (auto rights = engine::require_attach_rights(features); !rights) {
        return std::move(rights).error();
    }
    const auto rows = engine::calibrate(features);
    if (!rows) return rows.error();
    if (arguments.json) {
        output->write_line(report::calibrate_json(make_context("calibrate"), *rows));
    } else {
        output->write(report::calibrate_text(*rows, output->style()));
    }
    if (auto written = output->finish(); !written) return std::move(written).error();
    return int{kDone};
}

} // namespace

void add_calibrate(CLI::App& app, Action& action) {
    auto arguments = std::make_shared<OutputArguments>();
    CLI::App* command =
        app.add_subcommand("calibrate", "the floor and the accuracy of each engine on this host");
    add_output_options(*command, *arguments);
    command->footer("Example:\n  speedbump calibrate --json | jq .rows");
    command->final_callback(
        [arguments, &action] { action = [arguments] { return calibrate(*arguments); }; });
}

} // namespace speedbump::cli
