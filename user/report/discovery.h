// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "discover/native_survey.h"
#include "discover/stack_survey.h"
#include "experiment/document.h"
#include "report/json.h"
#include "report/table.h"

// What `discover` found, for people and programs. Pure functions.
namespace speedbump::report {

struct Discovery {
    std::vector<pid_t> pids;
    std::chrono::nanoseconds duration{0};
    discover::StackSurvey stacks;           // native and Python
    std::optional<discover::Survey> survey; // of the native calls
    std::vector<std::string> notes;         // what else could not be looked at, and why
    size_t top = 20;                        // candidates of each runtime, 0: all
    bool counted_only = false;              // of native functions only those that were asked for
};

// Tables of the Python and native functions that are worth a line; `verbose` names the native
// functions that were never called.
std::string discovery_text(const Discovery& discovery, const Style& style, bool verbose);
// Schema speedbump/discover/1.
std::string discovery_json(const Context& context, const Discovery& discovery);
// A targets file: a line a candidate, ranked, counts and shares as comments.
std::string discovery_targets(const Discovery& discovery);
// Stacks with their counts, a line each, as flame graph tools take them.
std::string discovery_collapsed(const Discovery& discovery);

// An experiment's document, and where it was read.
struct Measured {
    experiment::Document document;
    std::string path;
};
// A page with the stacks as an icicle graph, coloured by what was measured, and the tables. It asks
// nothing of any network.
std::string discovery_html(const Context& context, const Discovery& discovery,
                           const std::optional<Measured>& measured);

} // namespace speedbump::report
