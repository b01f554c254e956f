// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

#include "experiment/progress.h"
#include "experiment/progress_programs.h"

namespace speedbump::experiment {

// A kDevice point, whose units are launches. kUnsupported where one of its functions can't be
// watched, kNotFound where the processes have no launch or no wait of it.
Result<std::unique_ptr<ProgressPoint>> open_device(const ProgressSpec& spec,
                                                   std::shared_ptr<Programs> programs,
                                                   uint32_t index, const std::vector<pid_t>& pids);

} // namespace speedbump::experiment
