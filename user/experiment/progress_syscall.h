// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "experiment/progress.h"

namespace speedbump::experiment {

// Counts a system call of the session's processes. Others pay for it when they make that very call;
// where the kernel takes no program at that call's function, with each system call
// (docs/measurements.md), of which `warn` is told.
Result<std::unique_ptr<ProgressPoint>> open_syscall(
    const std::string& name, session::Session& session,
    const std::function<void(const std::string&)>& warn);

} // namespace speedbump::experiment
