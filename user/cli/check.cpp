// SPDX-License-Identifier: MIT
#include "report/check.h"

#include <memory>

#include "cli/command.h"
#include "cli/exit_status.h"
#include "cli/look.h"
#include "cli/output.h"
#include "engine/engines.h"
#include "targets/parser.h"

namespace speedbump::cli {

namespace {

struct CheckArguments {
    std::string targets_path;
    LookArguments look;
    OutputArguments output;
};

Result<int> check(const CheckArguments& arguments) {
    const auto file = targets::load_targets(arguments.targets_path);
    if (!file) return file.error();
    const auto engine =
        arguments.look.jumps ? engine::EngineChoice::kInprocess : engine::EngineChoice::kAuto;
    if (auto able = engine::require_options(engine, *file); !able) return std::move(able).error();
    auto output = Output::open(arguments.output);
    if (!output) return std::move(output).error();
    const auto found = look_for_targets(*file, arguments.look);
    if (!found) return found.error();
    if (arguments.output.json) {
        output->write_line(report::check_json(make_context("check"), *found, *file));
    } else {
        output->write(report::check_text(*found, *file, output->style(), arguments.output.verbose));
    }
    if (auto written = output->finish(); !written) return std::move(written).error();
    if (report::nothing_matched(*found, *file)) {
        return make_error(ErrorKind::kNothingMatched,
                          "no line matches anything that can be slowed");
    }
    return int{kDone};
}

} // namespace

void add_check(CLI::App& app, Action& action) {
    auto arguments = std::make_shared<CheckArguments>();
    CLI::App* command = app.add_subcommand("check", "list what each line matches; attach nothing");
    command->add_option("targets", arguments->targets_path, "targets file")
        ->type_name("TARGETS")
        ->required();
    add_pids(*command, arguments->look.pids);
    add_no_children(*command, arguments->look.follow_children);
    command
        ->add_option("--exe", arguments->look.executables,
                     "look at this program or library; may be repeated")
        ->type_name("FILE")
        ->allow_extra_args(false);
    command->add_flag("--entry-only", arguments->look.entry_only,
                      "probe the first instruction, also where a later one is cheaper");
    command
        ->add_option_function<std::string>(
            "--engine",
            [arguments](const std::string& name) { arguments->look.jumps = name == "inprocess"; },
            "where this engine would probe: bpf, kmod or inprocess")
        ->type_name("ENGINE")
        ->check(CLI::IsMember({"auto", "bpf", "kmod", "inprocess"}));
    add_output_options(*command, arguments->output);
    command->footer(
        "Without --pid and --exe only files that lines name by their whole path are looked at.\n"
        "Examples:\n"
        "  speedbump check targets.txt --pid $(pidof nginx)\n"
        "  speedbump check -v targets.txt --exe /usr/bin/redis-server");
    command->final_callback(
        [arguments, &action] { action = [arguments] { return check(*arguments); }; });
}

} // namespace speedbump::cli
