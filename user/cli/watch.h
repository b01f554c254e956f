// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>

#include "cli/options.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "session/session.h"
#include "util/result.h"

namespace speedbump::cli {

// What happens around the session while it is watched.
struct WatchHooks {
    // Called once, after everything is attached, reported and armed.
    std::function<Result<void>(session::Session&)> after_arming = [](session::Session&) {
        return Result<void>();
    };
    // Whether the program of `run` has ended; asked after every wake-up.
    std::function<bool()> program_ended = [] { return false; };
    // The session lasts as long as the program of `run`: a signal or --duration ends the delays,
    // the program decides about its own end.
    bool lasts_as_program = false;
};

// Attaches, reports what matched, arms, reports while it runs, and reports the total: the whole
// life of a session of `attach` and `run`. Gives why it ended (report::attach_final_json).
Result<std::string> watch_session(const SessionArguments& arguments, const std::string& command,
                                  Signals& signals, const WatchHooks& hooks);

} // namespace speedbump::cli
