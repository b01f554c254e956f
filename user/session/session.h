// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "session/types.h"
#include "targets/target.h"
#include "util/result.h"

namespace speedbump::session {

// One attached experiment: the process tree, its targets, their probes. Destruction disarms,
// detaches and leaves the processes as they were. Not thread-safe.
class Session {
  public:
    // Finds the tree, resolves the targets and attaches everything, disarmed. `warn` receives one
    // line per warning, now and later. kNothingMatched only by the caller's reading of snapshot().
    static Result<std::unique_ptr<Session>> attach(const SessionOptions& options,
                                                   const targets::TargetsFile& file,
                                                   std::function<void(const std::string&)> warn);
    ~Session();

    // Lets all delays begin at once; start= and duration= count from here. Pausing ends delays in
    // flight; resuming does not restart the windows.
    void arm();
    void pause();
    void resume();

    // Waits up to `timeout` for something to happen in the tree (fork, exec, new mapping, exit) and
    // deals with it. Also returns, with no error, when `wake_fd` (-1: none) becomes readable.
    // kNotFound once no process of the tree is left.
    Result<void> run_for(std::chrono::milliseconds timeout, int wake_fd = -1);

    // Changes live settings of every target whose line or name matches `pattern` ("" or "*": all):
    // the number of targets changed. kUsage, and nothing is changed, for what the engine can't do.
    Result<size_t> set(const std::string& pattern, const targets::Options& change);

    // The state and counters now.
    Snapshot snapshot();
    const targets::TargetsFile& file() const;

  private:
    struct Impl;
    explicit Session(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

} // namespace speedbump::session
