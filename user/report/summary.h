// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "session/types.h"
#include "targets/target.h"
#include "util/result.h"

// Sums over a session's counters: what text and JSON reports have in common. Pure functions.
namespace speedbump::report {

using session::Snapshot;
using std::chrono::nanoseconds;
using targets::TargetsFile;

struct Totals {
    uint64_t hits = 0;
    uint64_t delays = 0;
    nanoseconds requested{0};
    nanoseconds measured{0};

    Totals& operator+=(const Totals& other);
};
// What happened from `before` to `now`; a counter that went backwards gives 0.
Totals operator-(const Totals& now, const Totals& before);

// One element per target of the snapshot, by its index; counts of unknown targets are left out.
std::vector<Totals> totals_by_target(const Snapshot& snapshot);
Totals total(const std::vector<Totals>& all);

// What one line of the targets file selected, in all.
struct LineSummary {
    size_t line_index = 0; // into TargetsFile::lines
    size_t targets = 0;
    Totals totals;
};
// The lines that have targets, in the order of the file.
std::vector<LineSummary> summary_by_line(const Snapshot& snapshot,
                                         const std::vector<Totals>& totals);

// One row of a live report: what happened in the interval, and since the session was armed.
struct Activity {
    size_t target_index = 0;
    Totals interval;
    Totals since_armed;
    double calls_per_second = 0;
    double delays_per_second = 0;
    double cpu_share = 0; // measured time per time, 1: one CPU
};
struct ActivityReport {
    std::vector<Activity> targets; // those with a hit since armed, busiest first
    Activity all;                  // their sum; target_index has no meaning
    nanoseconds interval{0};
};
// Compares two snapshots of one session. With an interval of 0 all rates are 0.
ActivityReport compare(const Snapshot& before, const Snapshot& now);

// A target as a targets line would name it: "/usr/bin/redis-server:processCommand".
std::string target_label(const session::Target& target);
// The last part of the container's path: "redis-server:processCommand".
std::string short_target_label(const session::Target& target);

// One warning for each line that matched something of which nothing was ever called; it names the
// likely causes. The snapshot is one taken some seconds after arming.
std::vector<std::string> no_hit_warnings(const Snapshot& snapshot, const TargetsFile& file);
// Whether a session may go on with what matched. kNothingMatched when no target matched (unless
// the policy is to ignore that: a library may come later), or, under the policy kError, when a line
// matched nothing; the message names the lines.
Result<void> judge_matches(const Snapshot& snapshot, const TargetsFile& file,
                           session::MissingPolicy policy);
// One warning for each line that matched nothing.
std::vector<std::string> unmatched_warnings(const Snapshot& snapshot, const TargetsFile& file);

} // namespace speedbump::report
