// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "elf/placement.h"
#include "engine/engine.h"
#include "targets/target.h"
#include "util/result.h"

// Passive structs between the session and what shows it (user/report, user/cli).
namespace speedbump::session {

using std::chrono::nanoseconds;

using engine::EngineChoice;
enum class MissingPolicy { kError, kWarn, kIgnore };

struct SessionOptions {
    std::vector<pid_t> pids;
    std::optional<std::string> cgroup; // path below or of the cgroup v2 mount
    bool follow_children = true;
    targets::Options defaults; // for lines that set none
    EngineChoice engine = EngineChoice::kAuto;
    MissingPolicy missing = MissingPolicy::kWarn;
    bool start_paused = false;
    bool entry_only = false; // never move a probe off a function's first instruction
    // Of the session's schedule (Session::schedule()); 0: it has none. Calls of targets cost some
    // ns more with it.
    uint32_t columns = 0;
    // Set by `run`: pids holds one process that waits to exec this. Its program and libraries are
    // probed before it starts.
    std::vector<std::string> run_command;
};

// One thing that can be slowed: a native function, or a Python line. Index is its place in the
// session's list and never changes.
struct Target {
    targets::Runtime runtime = targets::Runtime::kNative;
    size_t line_index = 0;
    std::string container; // file path, or module pattern
    std::string name;
    uint64_t entry_offset = 0;
    elf::ProbeSite site; // native only
    engine::TargetSettings settings;
    bool below_floor = false; // the delay is smaller than the probe's own cost
};

struct SkippedTarget {
    std::string container;
    std::string name;
    std::optional<size_t> line_index;
    std::string reason;
};

struct ProcessInfo {
    pid_t pid = 0;
    std::string command; // comm
    bool alive = true;
};

// What the session stands on, for reports.
struct Snapshot {
    std::chrono::system_clock::time_point taken_at;
    nanoseconds since_armed{0};
    bool armed = false;
    std::vector<Target> targets;
    bool nothing_matched = false; // no native function, and no interpreter for the Python lines
    // Why no interpreter was hooked, where there was one to hook.
    std::optional<Error> hook_failure;
    std::vector<engine::Counts> counts; // one per (target, process) seen
    std::vector<ProcessInfo> processes;
    std::vector<engine::PythonMatch> python_matches;
    std::vector<SkippedTarget> skipped;
    std::vector<size_t> unmatched_lines;
    engine::Floors floors;
    std::string engine = "bpf"; // what delays the native targets
    uint64_t lost_events = 0;
    uint64_t lost_counts = 0;
    uint64_t lost_members = 0;
    // Files that new processes map before they are probed there (session/late_files.h).
    std::vector<std::string> late_files;
    bool counts_are_old = false; // native ones, read last at an earlier time
};

} // namespace speedbump::session
