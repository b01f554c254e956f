// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "report/summary.h"
#include "report/table.h"
#include "util/result.h"

// What `status` shows of live sessions. Pure functions.
namespace speedbump::report {

struct LiveTarget {
    std::string label; // "redis-server:processCommand"
    std::string delay; // delay_and_window()
    Totals totals;
};

// A live session as its speedbump/session/1 document tells of it.
struct LiveSession {
    pid_t pid = 0;
    std::string command; // "attach", "run"
    std::string engine;
    std::string targets_file;
    bool armed = false;
    nanoseconds since_armed{0}; // 0: never armed
    std::vector<pid_t> roots;   // what --pid named
    size_t processes = 0;       // alive in the tree
    Totals all;
    std::vector<LiveTarget> targets;
};

// kInvalid when the text is no such document.
Result<LiveSession> parse_session_json(const std::string& text);

// One row per session. `silent` are sessions that did not answer.
std::string status_list(const std::vector<LiveSession>& sessions, const std::vector<pid_t>& silent,
                        const Style& style);
// One session with its targets, the busiest first.
std::string status_detail(const LiveSession& session, const Style& style);

} // namespace speedbump::report
