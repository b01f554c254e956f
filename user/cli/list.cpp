// SPDX-License-Identifier: MIT
#include <map>
#include <memory>
#include <utility>

#include "cli/command.h"
#include "cli/exit_status.h"
#include "cli/look.h"
#include "cli/output.h"
#include "cpython/interpreter.h"
#include "engine/python/cores.h"
#include "engine/python/python_engine.h"
#include "report/check.h"
#include "util/log.h"

namespace speedbump::cli {

namespace {

struct ListArguments {
    std::vector<pid_t> pids;
    std::string glob = "*";
    bool no_python = false;
    OutputArguments output;
};

// The functions of all interpreters that the glob selects, each module's once. An interpreter that
// can't be entered is warned of.
// `failure`: of the first process whose functions could not be listed.
std::vector<engine::PythonMatch> list_python(const std::vector<pid_t>& pids,
                                             const std::string& glob,
                                             std::optional<Error>& failure) {
    std::map<std::pair<std::string, std::string>, engine::PythonMatch> functions;
    for (const pid_t pid : pids) {
        const auto interpreters = cpython::find_interpreters(pid);
        if (!interpreters || interpreters->empty()) continue;
        auto found = engine::list_python_functions(pid, engine::core_directories());
        if (!found) {
            log::warning("Python functions: " + found.error().message +
                         (found.error().hint.empty() ? "" : "; " + found.error().hint));
            if (!failure) failure = std::move(found.error());
            continue;
        }
        for (engine::PythonMatch& function : *found)
            if (is_selected(glob, function.module, function.name))
                functions.try_emplace({function.module, function.name}, std::move(function));
    }
    std::vector<engine::PythonMatch> result;
    for (auto& [names, function] : functions) result.push_back(std::move(function));
    return result;
}

Result<int> list(const ListArguments& arguments) {
    auto output = Output::open(arguments.output);
    if (!output) return std::move(output).error();
    auto native = list_native_functions(arguments.pids, arguments.glob);
    if (!native) return std::move(native).error();
    report::FunctionList functions{std::move(*native), {}};
    std::optional<Error> failure;
    if (!arguments.no_python)
        functions.python = list_python(arguments.pids, arguments.glob, failure);
    if (arguments.output.json) {
        output->write_line(report::list_json(make_context("list"), functions));
    } else {
        output->write(report::list_text(functions));
    }
    if (auto written = output->finish(); !written) return std::move(written).error();
    if (functions.native.empty() && functions.python.empty()) {
        if (failure) return std::move(*failure);
        return make_error(ErrorKind::kNothingMatched,
                          "no function's name matches '" + arguments.glob + "'");
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
                     "only symbols, demangled or Python names, FILE:NAME or MODULE:NAME that match")
        ->type_name("GLOB");
    command->add_flag("--no-python", arguments->no_python,
                      "native functions alone; nothing runs in the process");
    add_output_options(*command, arguments->output);
    command->footer(
        "Prints a targets line for each native function of the files that the process maps, and "
        "for\n"
        "each function of its Python interpreters. To find these, code of speedbump's runs in the\n"
        "process for a moment, as when attaching; natives are read from the files.\n"
        "Examples:\n"
        "  speedbump list --pid $(pidof redis-server) '*Command'\n"
        "  speedbump list --pid 12 'libcrypto*:*encrypt*' > targets.txt\n"
        "  speedbump list --pid $(pidof -s gunicorn) 'shop.views:*'");
    command->final_callback(
        [arguments, &action] { action = [arguments] { return list(*arguments); }; });
}

} // namespace speedbump::cli
