// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>

#include "experiment/progress.h"

namespace speedbump::experiment {

// Counts a system call of the session's processes. Others pay for it when they make that very call;
// on kernels without function tracing, with each system call (docs/measurements.md).
Result<std::unique_ptr<ProgressPoint>> open_syscall(const std::string& name,
                                                    const session::Session& session);

} // namespace speedbump::experiment
