// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "experiment/pair.h"
#include "report/table.h"

// `experiment --ab` for a reader. Pure functions; `limit` as in report/gate.h.
namespace speedbump::report {

std::string pair_text(const experiment::PairDocument& document, const experiment::Changes& changes,
                      std::optional<double> limit, const Style& style);
// One line for a terminal while it is measured.
std::string pair_progress(const experiment::PairDocument& document);
// Schema speedbump/ab/1, one line.
std::string pair_json(const experiment::PairDocument& document, const experiment::Changes& changes,
                      std::optional<double> limit);

} // namespace speedbump::report
