// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "experiment/document.h"
#include "experiment/progress_spec.h"
#include "session/types.h"
#include "targets/target.h"
#include "util/result.h"

namespace speedbump::experiment {

// Slices up to this long are switched by the clock, with all targets at once (decision 12); longer
// ones are arms, one after the other (decision 4).
inline constexpr auto kLongestSwitched = std::chrono::milliseconds(50);
inline constexpr auto kShortestSwitched = std::chrono::milliseconds(1);
// What an arm is left to settle where nothing else is asked for.
inline constexpr auto kDefaultSettle = std::chrono::milliseconds(50);

// What to find out, and how much it may cost the service.
struct Request {
    session::SessionOptions session;
    targets::TargetsFile file;          // each line that is no exclusion is one target
    std::vector<size_t> positive_lines; // of these, the positive controls
    std::vector<ProgressSpec> progress;
    std::vector<nanoseconds> doses; // empty: chosen for each target by its effect
    size_t blocks = 0;              // 0: until another limit
    double precision = 0;           // of the criticality; 0: until another limit
    nanoseconds time{0};            // 0: until another limit
    uint64_t seed = 1;
    nanoseconds slice{0};              // 0: chosen, by the first progress point (design.h)
    std::optional<nanoseconds> settle; // of an arm
    double max_slowdown = 0.5;
    double max_cpu = 0; // CPUs; 0: half of the host's
    bool off_arm = true;
    bool bisect = false;              // narrow each line down to the functions that matter
    std::set<targets::Runtime> whole; // of which all lines together are one target
};

struct Hooks {
    std::function<void(const std::string&)> warn;
    std::function<void(const std::string&)> say; // what happens now
    std::function<bool()> stop_asked;
    int wake_fd = -1; // readable when stop_asked() may have changed
    std::function<void(const Document&)> after_block;
};

// Runs the experiment to its end. An error means that nothing was measured; what ended it later is
// in the document (stopped, complete). The service is left as it was in either case.
Result<Document> run_experiment(const Request& request, const Hooks& hooks);

} // namespace speedbump::experiment
