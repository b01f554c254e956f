// SPDX-License-Identifier: MIT
#include "fleet/agent.h"

#include <unistd.h>

#include "cli/exit_status.h"
#include "cli/fleet.h"
#include "cli/output.h"

namespace speedbump::cli {

namespace {

Result<int> run() {
    // Its output may be a terminal's other end: mpirun gives that to all programs.
    if (::isatty(STDIN_FILENO) == 1)
        return make_error(ErrorKind::kUsage,
                          "agent: `speedbump experiment --at LAUNCH` starts it and talks to it; a "
                          "terminal can't");
    const report::Context context = make_context("agent");
    // Copies, so that these are closed at the end and others go on to have theirs.
    const Fd in(::dup(STDIN_FILENO)), out(::dup(STDOUT_FILENO));
    const fleet::Hello hello{fleet::kProtocol, context.version, context.host, context.kernel,
                             context.machine};
    if (auto lived = fleet::run_agent(hello, in, out); !lived) return std::move(lived).error();
    return int{kDone};
}

} // namespace

void add_agent(CLI::App& app, Action& action) {
    CLI::App* command =
        app.add_subcommand("agent", "one host's part of `experiment --at`, which starts it");
    command->final_callback([&action] { action = [] { return run(); }; });
}

} // namespace speedbump::cli
