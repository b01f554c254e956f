// SPDX-License-Identifier: MIT
#include <memory>

#include "cli/command.h"
#include "cli/live.h"

namespace speedbump::cli {

void add_detach(CLI::App& app, Action& action) {
    auto arguments = std::make_shared<LiveArguments>();
    CLI::App* command = app.add_subcommand("detach", "end a live session");
    add_live_options(*command, *arguments);
    command->footer(
        "Returns when all probes are out.\n"
        "Example:\n  speedbump detach --session 1234");
    command->final_callback([arguments, &action] {
        action = [arguments] { return request_of_session(*arguments, "detach\n", "detached"); };
    });
}

} // namespace speedbump::cli
