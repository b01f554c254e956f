// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

#include "experiment/progress.h"

// Progress points that are asked instead of counted: each read() takes as long as the answer.
namespace speedbump::experiment {

Result<std::unique_ptr<ProgressPoint>> open_command(const ProgressSpec& spec);
Result<std::unique_ptr<ProgressPoint>> open_file(const ProgressSpec& spec);
Result<std::unique_ptr<ProgressPoint>> open_http(const ProgressSpec& spec);

} // namespace speedbump::experiment
