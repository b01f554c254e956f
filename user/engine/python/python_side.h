// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/python/python_engine.h"
#include "engine/python/python_matches.h"
#include "engine/python/python_table.h"
#include "inject/start_module.h"
#include "process/namespaces.h"
#include "targets/target.h"
#include "util/clock.h"
#include "util/result.h"

namespace speedbump::engine {

// The interpreted half of a session: hooks the interpreters of the tree's processes and keeps the
// table that they share. Not thread-safe; the creating thread owns the table.
class PythonSide {
  public:
    // nullptr when the file has no Python line.
    static Result<std::unique_ptr<PythonSide>> create(const targets::TargetsFile& file,
                                                      uint32_t columns,
                                                      std::function<void(const std::string&)> warn);
    ~PythonSide();

    // Hooks those of the processes that are Python, several at a time. A process that is none is
    // passed over; one that will be soon (it has just been exec'd) is tried again by
    // handle_events(). What cannot be hooked is reported once. `wait`: until all are hooked or have
    // failed, as befits a session's beginning; else threads do it meanwhile, and handle_events()
    // takes in what came of it.
    void attach(const std::vector<std::pair<pid_t, uint64_t>>& processes_and_roots, bool wait);
    // A member was forked. It has its parent's hooks if they were in by then; else it is hooked
    // like any other process. Told of every fork, in their order.
    void forked(pid_t parent, pid_t child, uint64_t roots);
    // All forks that came before the last hook are told now: what is forked from here on has the
    // hooks of its parent.
    void all_forks_told() { fresh_.clear(); }
    // Whether attach() or handle_events() hooked somebody since then.
    bool has_fresh() const { return !fresh_.empty(); }
    // The process runs another program now.
    void execed(pid_t pid);
    void exited(pid_t pid);
    // Takes in what the interpreters say, and tries again what was not ready.
    void handle_events();
    int fd() const;
    // When handle_events() has something to do at the latest.
    Clock::duration longest_sleep() const;

    // For the front of the PYTHONPATH of the session's own program, which is then hooked before its
    // first line; so are the Pythons that it starts, unless `only` names its process.
    Result<std::string> path_entry(pid_t only);

    // As HookEngine::regroup().
    Result<void> regroup(const Regrouping& regrouping);

    void configure(size_t line, const TargetSettings& settings, uint64_t window_origin_ns);
    void arm(bool armed) { table_->arm(armed); }
    uint32_t* armed_word() { return table_->armed_word(); }
    // nullptr without columns.
    Schedule* schedule() { return table_->schedule(); }
    // By line and process.
    std::vector<Counts> read_counts();
    uint64_t lost_counts() const { return table_->lost_counts(); }
    const std::vector<PythonMatch>& matches() const { return matches_.all(); }
    const std::map<pid_t, PythonAttachment>& attached() const { return attached_; }
    bool ever_attached() const { return ever_attached_; }
    // Why the first process that could not be hooked was not.
    const std::optional<Error>& first_failure() const { return first_failure_; }

  private:
    // A process on its way to being hooked.
    struct Attempt {
        uint64_t roots = 0;
        bool execed = false;    // since it was forked
        bool under_way = false; // else `next` says when it is tried again
        bool outdated = false;  // what is under way is aimed at the program before
        bool reported = false;  // that it failed; not tried again
        bool ending = false;    // it said so; not tried again
        Clock::time_point next = Clock::time_point::max();
        Clock::time_point until{};
        bool is_idle() const {
            return !under_way && !reported && !ending && next == Clock::time_point::max();
        }
    };
    explicit PythonSide(std::function<void(const std::string&)> warn) : warn_(std::move(warn)) {}
    void begin(pid_t pid, Attempt& attempt);
    void take_outcome(pid_t pid, Result<PythonAttachment> outcome);
    void take_events();
    void wait_for_looks();
    void record(std::vector<PythonMatch> matches);

    std::function<void(const std::string&)> warn_;
    std::unique_ptr<PythonTable> table_;
    std::unique_ptr<PythonEngine> engine_; // after the table, so that it detaches first
    PythonMatches matches_;
    std::map<pid_t, PythonAttachment> attached_;
    std::set<pid_t> fresh_; // attached, while forks from before that may not be told yet
    std::map<pid_t, uint64_t> inherited_; // hooked since their fork, and not attached; their roots
    std::map<pid_t, Attempt> attempts_;
    bool ever_attached_ = false;
    std::optional<Error> first_failure_;
    process::PidNames pid_names_; // whose counters are whose
    std::optional<inject::StartModule> start_module_;
    bool told_late_ = false;
};

} // namespace speedbump::engine
