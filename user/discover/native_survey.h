// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "discover/inlined_places.h"
#include "discover/survey_candidates.h"
#include "engine/features.h"
#include "process/resolver.h"
#include "stacks/profile.h"
#include "targets/target.h"
#include "util/result.h"

namespace speedbump::discover {

struct SurveyOptions {
    std::vector<pid_t> pids;   // each alone, without descendants
    double budget = 0.05;      // of one CPU: what counting may cost on average
    bool is_asked_for = false; // the lines name what the user wants to see, however dear: and
                               // where it is inlined, which takes debug information and time
};

// How often a native function was called while it was watched.
struct SurveyedFunction {
    process::NativeMatch match;
    std::chrono::nanoseconds watched{0};
    std::map<pid_t, uint64_t> calls;
    // Counting it all the time would cost more than the budget: it was counted in short slices, in
    // which its process may have been slower than else.
    bool is_dear = false;

    uint64_t all_calls() const {
        uint64_t sum = 0;
        for (const auto& [pid, count] : calls) sum += count;
        return sum;
    }
    double calls_per_second() const {
        const double seconds = std::chrono::duration<double>(watched).count();
        return seconds > 0 ? static_cast<double>(all_calls()) / seconds : 0;
    }
};

struct Survey {
    std::vector<SurveyedFunction> functions; // those that were watched
    size_t not_watched = 0;                  // for lack of time
    size_t processes_not_watched = 0;        // of a large tree: all but those that ran most
    std::set<std::string> files;             // whose functions were looked at
    size_t files_left_out = 0;               // that no stack showed, and that are large
    size_t left_out = 0; // seen by nobody, not asked for, and too many, or dear to probe
    std::map<FunctionPlace, std::string> not_counted; // why these were not watched
    std::vector<process::Skipped> skipped;            // what can't be probed
    size_t refused = 0;                               // the kernel takes no probe there
    std::chrono::nanoseconds duration{0};
    double added_cpu = 0; // of one CPU: calls counted times what a count costs on this host
    std::vector<std::string> unmatched; // lines that name no function of a symbol table
    std::vector<InlinedPlace> inlined;  // that lines name
};

// Counts the calls of native functions, under a budget. Nothing is delayed.
class NativeSurvey {
  public:
    // Finds what the lines of `file` select in the processes (of a large tree: in some of them),
    // where they are asked for. Probes nothing in them.
    static Result<NativeSurvey> prepare(const SurveyOptions& options,
                                        const engine::Features& features,
                                        const targets::TargetsFile& file);
    NativeSurvey(NativeSurvey&&) noexcept;
    NativeSurvey& operator=(NativeSurvey&&) noexcept;
    ~NativeSurvey();

    // Counts the calls of the functions that were `seen` in stacks, for half of the time, then, as
    // far as they are cheap or asked for, of the others, in batches. What is called too often for
    // the budget is watched for moments only. Stops early, with what it has, when `interrupted`
    // says so. Of a large tree those processes are watched that had most active stacks: putting
    // one probe in place takes the kernel a look at each process that maps the file. All probes are
    // out when it returns. To be called once.
    Result<Survey> count(const stacks::Profile& seen, std::chrono::nanoseconds time,
                         const std::function<bool()>& interrupted);

  private:
    class Impl;
    explicit NativeSurvey(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

} // namespace speedbump::discover
