// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/python_engine.h"
#include "engine/python_table.h"
#include "session/types.h"
#include "targets/target.h"
#include "util/clock.h"
#include "util/result.h"

namespace speedbump::session {

// The interpreted half of a session: hooks the interpreters of the tree's processes and keeps the
// table that they share. Not thread-safe; the creating thread owns the table.
class PythonSide {
  public:
    // nullptr when the file has no Python line.
    static Result<std::unique_ptr<PythonSide>> create(const targets::TargetsFile& file,
                                                      std::function<void(const std::string&)> warn);
    ~PythonSide();

    // Hooks those of the processes that are Python, several at a time. A process that is none is
    // passed over; one that will be soon (it has just been exec'd) is tried again by tend(). What
    // cannot be hooked is told once.
    // `patient`: waits seconds for each where it must, as befits a session's beginning; else such
    // a process, too, is left for tend().
    void attach(const std::vector<std::pair<pid_t, uint64_t>>& processes_and_roots, bool patient);
    // The process runs another program now.
    void forget(pid_t pid);
    // Takes in what the interpreters say, and tries again what was not ready.
    void tend();
    int fd() const;
    // When tend() has something to do at the latest.
    Clock::duration longest_sleep() const;

    void configure(size_t line, const engine::TargetSettings& settings, uint64_t window_origin_ns);
    void arm(bool armed) { table_->arm(armed); }
    // By line and process.
    std::vector<engine::Counts> read_counts() const { return table_->read_counts(); }
    uint64_t lost_counts() const { return table_->lost_counts(); }
    const std::vector<engine::PythonMatch>& matches() const { return matches_; }
    const std::map<pid_t, engine::PythonAttachment>& attached() const { return attached_; }
    bool ever_attached() const { return ever_attached_; }

  private:
    struct Waiting {
        uint64_t roots = 0;
        Clock::time_point next{};
        Clock::time_point until{};
    };
    explicit PythonSide(std::function<void(const std::string&)> warn) : warn_(std::move(warn)) {}
    void try_attach(const std::vector<std::pair<pid_t, uint64_t>>& processes,
                    const inject::InjectOptions& options);
    void hear();
    void record(std::vector<engine::PythonMatch> matches);

    std::function<void(const std::string&)> warn_;
    std::unique_ptr<engine::PythonTable> table_;
    std::unique_ptr<engine::PythonEngine> engine_; // after the table, so that it detaches first
    std::vector<engine::PythonMatch> matches_;
    std::map<pid_t, engine::PythonAttachment> attached_;
    std::map<pid_t, Waiting> waiting_;
    bool ever_attached_ = false;
};

} // namespace speedbump::session
