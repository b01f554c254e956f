// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "session/schedule.h"
#include "session/types.h"
#include "session/warn.h"
#include "targets/target.h"
#include "util/result.h"

namespace speedbump::engine {
struct Engines;
struct Features;
struct Regrouping;
} // namespace speedbump::engine

namespace speedbump::session {

// One attached experiment: the process tree, its targets, their probes. Destruction disarms,
// detaches and leaves the processes as they were. Not thread-safe.
class Session {
  public:
    // Finds the tree, resolves the targets and attaches everything, disarmed. `warn` receives one
    // line per warning, now and later. kNothingMatched only by the caller's reading of snapshot().
    static Result<std::unique_ptr<Session>> attach(const SessionOptions& options,
                                                   const targets::TargetsFile& file, Warn warn);
    // The same with engines that the caller has opened.
    static Result<std::unique_ptr<Session>> over(engine::Engines engines,
                                                 const SessionOptions& options,
                                                 const targets::TargetsFile& file, Warn warn);
    ~Session();

    // Lets all delays begin at once; start= and duration= count from here. Pausing ends delays in
    // flight; resuming does not restart the windows.
    void arm();
    void pause();
    void resume();
    // By which a signal handler ends the delays (engine::DelayEngine::armed_word()); those of the
    // kernel module have none.
    std::vector<uint32_t*> armed_words();

    // For the front of PYTHONPATH in the environment of the program of `run`: with it Python is
    // slowed from its first line. "" without Python targets.
    Result<std::string> python_path_entry();

    // Waits up to `timeout` for something to happen in the tree (fork, exec, new mapping, exit) and
    // deals with it. Also returns, with no error, when `wake_fd` (-1: none) becomes readable.
    // kNotFound once no process of the tree is left.
    Result<void> run_for(std::chrono::milliseconds timeout, int wake_fd = -1);

    // Changes live settings of every target whose line or name matches `pattern` ("" or "*": all):
    // the number of targets changed. kUsage, and nothing is changed, for what the engine can't do.
    Result<size_t> set(const std::string& pattern, const targets::Options& change);

    // One dose: target i has the delay delays[i] until `end_ns` (monotonic_ns()), when it ends by
    // itself; those after the last have none. Only what changes is told to the engines. False when
    // a target could not be changed, which has been warned of.
    bool apply(std::span<const nanoseconds> delays, uint64_t end_ns);

    // Gives a target the delays of this column of the schedule, or, without one, its own again;
    // false when that could not be done.
    bool set_column(uint32_t target, std::optional<uint32_t> column);
    // nullptr when the session was attached without columns.
    Schedule* schedule();

    // Has the functions of Python lines told apart anew (engine::Regrouping) without taking a hook
    // out, and waits for all processes. kTimeout: one of them did not do it.
    Result<void> regroup(engine::Regrouping regrouping);

    // Takes the probes out of the processes and waits until they are gone; the tree is followed on.
    // Interpreters are unhooked unless `keep_interpreters`, which leaves their targets disabled
    // but for the lines named. put_back() undoes it; counters go on. Not with an engine whose
    // probes go with it alone.
    void take_out(bool keep_interpreters, const std::set<size_t>& enabled_lines);
    Result<void> put_back();

    // The state and counters now.
    Snapshot snapshot();
    // The counters alone, one per (target, process) seen. An error when they can't be read;
    // snapshot() has those read last then, and says so.
    Result<std::vector<engine::Counts>> counts();
    // Their sums over all processes, one for each target, by its index.
    Result<std::vector<engine::Counts>> totals();
    // Those of the tree so far, the ended ones too.
    std::vector<ProcessInfo> processes() const;
    // What a call of a target costs with a delay of 0.
    nanoseconds floor(uint32_t target) const;
    // The kernel's table of the processes that belong (bpf/abi.h: sb_member by tgid), for other
    // programs that only count these. The session's own.
    int tree_map() const;
    // The same of its schedule (sb_schedule), which programs that count by slice read; -1: none.
    int schedule_map() const;
    // What the kernel can do, as it was probed for this session; the session's own.
    const engine::Features& features() const;
    const targets::TargetsFile& file() const;

  private:
    struct Impl;
    explicit Session(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

} // namespace speedbump::session
