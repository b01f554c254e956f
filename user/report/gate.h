// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "experiment/gate.h"
#include "report/table.h"

// Whether b is worse than a, for people and for a CI system. Pure functions. `limit` is the share
// of
// --fail-if-worse, none where nothing is to be judged.
namespace speedbump::report {

// A row for each figure; with a limit a line for each that is worse or undecided, and what
// that comes to. Every line ends with a newline.
std::string gate_text(const experiment::Changes& changes, std::optional<double> limit,
                      const Style& style);

// "changes", "notes", and with a limit "limit", "doubts" and "judgement" of docs/json.md.
void add_gate_json(nlohmann::ordered_json& json, const experiment::Changes& changes,
                   std::optional<double> limit);

// JUnit XML: a test case for each figure, failed when it is worse, skipped when it is undecided.
std::string gate_junit(const experiment::Changes& changes, double limit, const std::string& suite);

} // namespace speedbump::report
