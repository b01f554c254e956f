// SPDX-License-Identifier: MIT
#include <memory>

#include "cli/command.h"
#include "cli/live.h"

namespace speedbump::cli {

void add_pause(CLI::App& app, Action& action) {
    auto arguments = std::make_shared<LiveArguments>();
    CLI::App* command =
        app.add_subcommand("pause", "end all delays of a live session, until resume");
    add_live_options(*command, *arguments);
    command->footer("Example:\n  speedbump pause && ./load --phase warm-up && speedbump resume");
    command->final_callback([arguments, &action] {
        action = [arguments] { return request_of_session(*arguments, "pause\n", "paused"); };
    });
}

} // namespace speedbump::cli
