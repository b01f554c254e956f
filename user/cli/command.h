// SPDX-License-Identifier: MIT
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "util/result.h"

namespace speedbump::cli {

// What the parsed command line asks for; gives the exit status.
using Action = std::function<Result<int>()>;

// Each adds one command to `app`; when the command line names it, `action` is set to what it does.
void add_attach(CLI::App& app, Action& action);
// `program` is what stands after "--": the program and its arguments. Must outlive the action.
void add_run(CLI::App& app, Action& action, const std::vector<std::string>& program);
void add_check(CLI::App& app, Action& action);
void add_list(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_discover(CLI::App& app, Action& action);
void add_dump(CLI::App& app, Action& action);
void add_doctor(CLI::App& app, Action& action);
void add_calibrate(CLI::App& app, Action& action);
void add_status(CLI::App& app, Action& action);
void add_set(CLI::App& app, Action& action);
void add_pause(CLI::App& app, Action& action);
void add_resume(CLI::App& app, Action& action);
void add_detach(CLI::App& app, Action& action);
void add_experiment(CLI::App& app, Action& action);
void add_report(CLI::App& app, Action& action);
void add_compare(CLI::App& app, Action& action);

} // namespace speedbump::cli
