// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "lifecycle/signals.h"
#include "session/session.h"
#include "util/result.h"

namespace speedbump::lifecycle {

struct WatchRequest {
    std::string targets_path;
    session::SessionOptions session;
    std::chrono::nanoseconds stats_interval = std::chrono::seconds(1);
    std::string control_fifo; // empty: only the session's socket
};

// Who is told what becomes of a session.
class WatchReporter {
  public:
    WatchReporter() = default;
    WatchReporter(const WatchReporter&) = delete;
    WatchReporter& operator=(const WatchReporter&) = delete;
    virtual ~WatchReporter() = default;

    // Before anything is touched: whether there will be room for the report.
    virtual Result<void> open() = 0;
    virtual void warn(const std::string& text) = 0;
    // What is attached, before it is armed.
    virtual void matched(const session::Snapshot& snapshot, const targets::TargetsFile& file) = 0;
    // Whether it takes samples, and would take one now without waiting for whoever reads them.
    virtual bool wants_samples() const = 0;
    virtual void sample(const session::Snapshot& before, const session::Snapshot& now,
                        const targets::TargetsFile& file) = 0;
    // The answer to a request for the session's status, one JSON object on one line.
    virtual std::string status(const session::Snapshot& snapshot,
                               const targets::TargetsFile& file) const = 0;
    virtual void final(const session::Snapshot& snapshot, const targets::TargetsFile& file,
                       const std::string& reason) = 0;
    // kIo when something could not be reported.
    virtual Result<void> finish() = 0;
};

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
Result<std::string> watch_session(const WatchRequest& request, WatchReporter& reporter,
                                  Signals& signals, const WatchHooks& hooks);

} // namespace speedbump::lifecycle
