// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "process/interpreter.h"
#include "report/json.h"
#include "stacks/stack_reader.h"

// Python stacks for people and programs. Pure functions.
namespace speedbump::report {

struct DumpedThread {
    stacks::ThreadStack stack;
    std::string name;  // as the kernel has it
    std::string state; // "running", "runnable"...: what the scheduler does with it
};

struct DumpedProcess {
    pid_t pid = 0;
    process::Interpreter interpreter;
    std::vector<DumpedThread> threads;
};

// All stacks, innermost frame first; every line ends with a newline.
std::string stacks_text(const std::vector<DumpedProcess>& processes);
// Schema speedbump/dump/1.
std::string stacks_json(const Context& context, const std::vector<DumpedProcess>& processes);

} // namespace speedbump::report
