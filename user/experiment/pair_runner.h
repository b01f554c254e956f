// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "experiment/pair.h"
#include "experiment/progress_spec.h"
#include "util/result.h"

namespace speedbump::experiment {

struct PairRequest {
    std::array<pid_t, 2> pids{}; // a, b
    std::vector<ProgressSpec> progress;
    nanoseconds time{0};  // 0: until another limit
    double precision = 0; // of the change; 0: until another limit
    nanoseconds slice = std::chrono::milliseconds(50);
    bool follow_children = true;
};

struct PairHooks {
    std::function<void(const std::string&)> warn;
    std::function<void(const std::string&)> say; // what happens now
    std::function<bool()> stop_asked;
    int wake_fd = -1; // readable when stop_asked() may have changed
    std::function<void(const PairDocument&)> after_second;
};

// Counts the progress of both at the same moments, until the end; nothing is delayed. kUsage for
// progress points that can't tell the two apart. An error means that nothing was measured; what
// ended it later is in the document (stopped, complete).
Result<PairDocument> run_pair(const PairRequest& request, const PairHooks& hooks);

} // namespace speedbump::experiment
