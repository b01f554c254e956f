// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "experiment/analysis.h"
#include "experiment/comparison.h"
#include "experiment/document.h"
#include "experiment/gate.h"
#include "report/table.h"

// Experiments for a reader. Pure functions.
namespace speedbump::report {

// The ranked table of each progress point, controls, notes and warnings.
std::string experiment_table(const experiment::Document& document,
                             const experiment::Results& results, const Style& style);
// One line for a terminal while blocks are still being measured.
std::string experiment_progress(const experiment::Document& document,
                                const experiment::Results& results);

std::string comparison_table(const experiment::Comparison& comparison, const Style& style);
// Schema speedbump/compare/1, one line.
// With the changes of pace, judged by `limit` where there is one.
std::string comparison_json(const experiment::Comparison& comparison,
                            const experiment::Changes& changes, std::optional<double> limit);

// One HTML file that needs nothing else: tables, and dose-response plots by the Chart.js that it
// carries.
std::string experiment_html(const experiment::Document& document,
                            const experiment::Results& results);
// The same page without data, for a server: it asks for "data" beside it, which is
// experiment_live_data(), each second, until that says that the experiment is over.
std::string experiment_live_page();
// How far an experiment has got; `limit_s` 0: there is none.
struct Live {
    double elapsed_s = 0;
    double limit_s = 0;
};
// JSON; nullopt: it is over.
std::string experiment_live_data(const experiment::Document& document,
                                 const experiment::Results& results,
                                 const std::optional<Live>& live);

} // namespace speedbump::report
