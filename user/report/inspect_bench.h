// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "report/json.h"

// What `bench inspect` measured. Pure functions.
namespace speedbump::report {

struct InspectBench {
    std::string code;    // "basic"...; empty: a process of the user's
    std::string threads; // "all", "main", "only_active"
    std::string python;  // "Python 3.12.1 (/usr/bin/python3.12)"
    uint64_t attempts = 0;
    uint64_t successes = 0;
    uint64_t stacks = 0;              // read in all attempts
    std::chrono::nanoseconds work{0}; // inside the reader
    std::chrono::nanoseconds total{0};

    double success_share() const;
    double us_per_call() const;
    double calls_per_second_of_work() const;
    double samples_per_second() const;
    double work_efficiency() const;
};

// "20,000 attempts, 99.98% read, 1.52 us a call, 658k calls/s"
std::string inspect_bench_progress(const InspectBench& bench);
// Every line ends with a newline.
std::string inspect_bench_text(const InspectBench& bench);
// Schema speedbump/bench-inspect/1.
std::string inspect_bench_json(const Context& context, const InspectBench& bench);

} // namespace speedbump::report
