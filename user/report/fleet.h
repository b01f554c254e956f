// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "experiment/analysis.h"
#include "experiment/document.h"
#include "report/table.h"

namespace speedbump::report {

// What each function does on each host of a fleet, and what there is to say of the hosts. Pure.
std::string fleet_text(const experiment::Document& document, const experiment::Results& results,
                       const Style& style);

} // namespace speedbump::report
