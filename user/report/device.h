// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "experiment/analysis.h"
#include "experiment/document.h"
#include "report/table.h"

namespace speedbump::report {

// Who waits for whom at one device's interface, with the numbers behind it, in lines.
std::string device_text(const experiment::Document& document,
                        const experiment::DeviceResult& result, const Style& style);

} // namespace speedbump::report
