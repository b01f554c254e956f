// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "elf/inlined.h"
#include "process/resolver.h"
#include "targets/target.h"
#include "util/result.h"

namespace speedbump::session {

struct SurveyOptions {
    std::vector<pid_t> pids; // each alone, without descendants
    std::chrono::nanoseconds duration{0};
    double budget = 0.05;      // of one CPU: what counting may cost on average
    bool find_inlined = false; // that lines name; takes debug information and time
};

// How often a native function was called while it was watched.
struct SurveyedFunction {
    process::NativeMatch match;
    std::chrono::nanoseconds watched{0};
    std::map<pid_t, uint64_t> calls;

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
    size_t refused = 0;                      // the kernel takes no probe there
    std::chrono::nanoseconds duration{0};
    double added_cpu = 0; // of one CPU: calls counted times what a count costs on this host
    std::vector<process::Skipped> skipped;
    std::vector<std::string> unmatched; // lines that name no function of a symbol table
    struct Inlined {
        std::string path;
        elf::InlinedFunction function;
    };
    std::vector<Inlined> inlined; // that lines name: their calls are not counted there
};

// Counts the calls of the native functions that the lines of `file` select, in batches: many are
// watched together while they cost little, and what is called too often for the budget is
// unprobed at once, its rate being known by then. Stops early, with what it has, when
// `interrupted` says so. Nothing is delayed; all probes are out when it returns.
Result<Survey> survey_native(const SurveyOptions& options, const targets::TargetsFile& file,
                             const std::function<bool()>& interrupted);

} // namespace speedbump::session
