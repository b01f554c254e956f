// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "stacks/profile.h"
#include "util/result.h"

namespace speedbump::discover {

struct StackSurveyOptions {
    // The processes to look at, asked for again and again: a tree grows.
    std::function<std::vector<pid_t>()> list;
    std::chrono::nanoseconds duration{0};
    unsigned rate = 99; // samples of each thread and second
    bool with_python = true;
    bool with_native = true; // needs the rights for BPF
};

struct StackSurvey {
    stacks::Profile profile;
    std::vector<std::string> interpreters; // "process 12: Python 3.12.1 (/usr/bin/python3.12)"
    std::vector<std::string> notes;        // what could not be looked at, and why
    uint64_t from_ns = 0;                  // CLOCK_MONOTONIC: when sampling began and ended
    uint64_t to_ns = 0;
    double own_cpu = 0; // of one CPU: what sampling took
};

// Samples the whole stacks of all threads, native and Python, until the time is over, all processes
// have ended, or `interrupted`. A thread on a CPU is sampled by that CPU's clock; the others are
// read while they are off the CPUs, and once only as long as they stay there. Without the rights
// for BPF Python stacks alone are read, from outside. Nothing is stopped or written
// to. docs/decisions/0008-whole-stacks.md.
StackSurvey survey_stacks(const StackSurveyOptions& options,
                          const std::function<bool()>& interrupted);

} // namespace speedbump::discover
