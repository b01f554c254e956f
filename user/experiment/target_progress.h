// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>

#include "experiment/progress.h"
#include "experiment/runner.h"
#include "session/session.h"
#include "targets/target.h"
#include "util/result.h"

// Progress points that a session counts itself, as targets with no delay: Python functions, and
// native ones where jumps are all that there are rights for.
namespace speedbump::experiment {

struct ProgressLines {
    std::map<size_t, size_t> lines; // of the session's targets file, by progress point
    bool has_jumps = false;         // some of them are native
};

// Adds a line for each to the file of the session, where no target is the same. kUsage where that
// one takes some of the calls only.
Result<ProgressLines> add_progress_lines(const Request& request, targets::TargetsFile& file);

// The targets of a session with these lines. kNotFound for a point that names nothing, kUnsupported
// where no jump can be; `warn` is told of functions that are left out, and of those that targets
// go without.
Result<TargetProgress> find_progress_targets(const Request& request, const ProgressLines& progress,
                                             session::Session& session,
                                             const std::function<void(const std::string&)>& warn);

} // namespace speedbump::experiment
