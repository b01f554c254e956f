// SPDX-License-Identifier: MIT
#include <memory>

#include "cli/command.h"
#include "cli/exit_status.h"
#include "cli/look.h"
#include "cli/output.h"
#include "report/check.h"

namespace speedbump::cli {

namespace {

struct ListArguments {
    std::vector<pid_t> pids;
    std::string glob = "*";
    OutputArguments output;
};

Result<int> list(const ListArguments& arguments) {
    auto output = Output::open(arguments.output);
    if (!output) return std::move(output).error();
    const auto functions = list_native_functions(arguments.pids, arguments.glob);
    if (!functions) return functions.error();
    if (arguments.output.json) {
        output->write_line(report::list_json(make_context("list"), *functions));
    } else {
        output->write(report::list_text(*functions));
    }
    if (auto written = output->finish(); !written) return std::move(written).error();
    if (functions->empty()) {
        return make_error(ErrorKind::kNothingMatched,
                          "no native function's name matches '" + arguments.glob + "'");
    }
    return int{kDone};
}

} // namespace

void add_list(CLI::App& app, Action& action) {
    auto arguments = std::make_shared<ListArguments>();
    CLI::App* command =
        app.add_subcommand("list", "list the functions that a targets line could name");
    add_pids(*command, arguments->pids)->required();
    command
        ->add_option("glob", arguments->glob,
                     "only symbols, demangled names or file:symbol that match")
        ->type_name("GLOB");
    add_output_options(*command, arguments->output);
    command->footer(
        "Prints a targets line for each native function of the files that the process maps.\n"
        "Examples:\n"
        "  speedbump list --pid $(pidof redis-server) '*Command'\n"
        "  speedbump list --pid 12 'libcrypto*:*encrypt*' > targets.txt");
    command->final_callback(
        [arguments, &action] { action = [arguments] { return list(*arguments); }; });
}

} // namespace speedbump::cli
