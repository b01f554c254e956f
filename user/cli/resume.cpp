// SPDX-License-Identifier: MIT
#include <memory>

#include "cli/command.h"
#include "cli/live.h"

namespace speedbump::cli {

void add_resume(CLI::App& app, Action& action) {
    auto arguments = std::make_shared<LiveArguments>();
    CLI::App* command = app.add_subcommand("resume", "let the delays of a live session go on");
    add_live_options(*command, *arguments);
    command->footer(
        "Also begins a session of attach --paused.\n"
        "Example:\n  speedbump resume --session 1234");
    command->final_callback([arguments, &action] {
        action = [arguments] { return request_of_session(*arguments, "resume\n", "resumed"); };
    });
}

} // namespace speedbump::cli
