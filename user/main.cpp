// SPDX-License-Identifier: MIT
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "cli/command.h"
#include "cli/exit_status.h"
#include "cli/fleet.h"
#include "cli/wrong_usage.h"
#include "util/descriptors.h"
#include "util/log.h"
#include "util/text.h"

namespace {

using speedbump::Error;
using speedbump::ErrorKind;

// The errors of a targets file carry "FILE:LINE:COLUMN: error:" already, as compilers print them.
void print_error(const Error& error) {
    const bool is_diagnostics =
        error.kind == ErrorKind::kTargetsFile && error.message.ends_with('\n');
    if (is_diagnostics) {
        std::fputs(error.message.c_str(), stderr);
    } else {
        speedbump::log::error(error.message);
    }
    if (!error.hint.empty())
        std::fprintf(stderr, "speedbump: try: %s\n", speedbump::printable(error.hint).c_str());
}

// The standard library throws where a thread or memory is not to be had.
speedbump::Result<int> run_action(const speedbump::cli::Action& action) {
    try {
        return action();
    } catch (const std::system_error& problem) {
        return speedbump::errno_error(problem.what(), problem.code().value());
    } catch (const std::bad_alloc&) {
        return speedbump::errno_error("take memory", ENOMEM);
    }
}

} // namespace

int main(int argc, char** argv) {
    using namespace speedbump::cli;
    speedbump::hold_standard_streams();
    speedbump::allow_many_descriptors();
    std::vector<std::string> arguments(argv + 1, argv + argc);
    // What follows "--" of `run` belongs to the program, whatever it looks like.
    std::vector<std::string> program;
    if (!arguments.empty() && arguments[0] == "run") {
        const auto end = std::find(arguments.begin(), arguments.end(), "--");
        if (end != arguments.end()) program.assign(end + 1, arguments.end());
        arguments.erase(end, arguments.end());
    }

    Action action;
    CLI::App app(
        "Slow functions of running programs down by a known time, to see what they "
        "matter for.",
        "speedbump");
    app.set_version_flag("--version", "speedbump " SPEEDBUMP_VERSION);
    app.require_subcommand(1);
    app.footer(
        "A targets file names what to slow, a function a line:\n"
        "  +exe:processCommand delay=20us\n"
        "  +libcrypto.so*:EVP_* delay=5us every=10\n"
        "  app.views:render delay=1ms\n"
        "See speedbump(1).");
    add_attach(app, action);
    add_run(app, action, program);
    add_check(app, action);
    add_list(app, action);
    add_discover(app, action);
    add_dump(app, action);
    add_bench(app, action);
    add_doctor(app, action);
    add_calibrate(app, action);
    add_status(app, action);
    add_set(app, action);
    add_pause(app, action);
    add_resume(app, action);
    add_detach(app, action);
    add_experiment(app, action);
    add_report(app, action);
    add_compare(app, action);
    add_agent(app, action);
    try {
        // parse() takes the words in reverse order
        app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) return app.exit(error); // --help, --version
        print_error(wrong_usage(app, error, arguments));
        return kWrongUsage;
    }
    const speedbump::Result<int> status = run_action(action);
    if (status) return *status;
    print_error(status.error());
    return exit_status(status.error().kind);
}
