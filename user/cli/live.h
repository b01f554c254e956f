// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/options.h"
#include "util/result.h"

// What the commands that talk to live sessions have in common.
namespace speedbump::cli {

struct LiveArguments {
    pid_t session = 0; // 0: the only one there is
    OutputArguments output;
};

// --session, and the options for output.
void add_live_options(CLI::App& command, LiveArguments& arguments);

// The PIDs of this user's live sessions.
Result<std::vector<pid_t>> find_sessions();

// Sends a request line to the session that is meant, prints its answer (--json) or "session PID"
// and `told`, and gives the exit status.
Result<int> request_of_session(const LiveArguments& arguments, const std::string& request,
                               const std::string& told);

} // namespace speedbump::cli
