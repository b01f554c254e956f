// SPDX-License-Identifier: MIT
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "cli/exit_status.h"
#include "cli/output.h"
#include "experiment/gate.h"
#include "util/result.h"

// What `compare` and `experiment --ab` have in common: --fail-if-worse and --junit.
namespace speedbump::cli {

struct GateArguments {
    std::optional<std::string> limit;
    std::string junit;
};

void add_gate_options(CLI::App& command, GateArguments& arguments);

class Gate {
  public:
    // Opens the JUnit file, so that it is known early that it can be written.
    static Result<Gate> open(const GateArguments& arguments, const std::string& command);

    std::optional<double> limit() const { return limit_; }
    // Writes the JUnit file; the exit status: kDone without a limit.
    Result<int> judge(const experiment::Changes& changes);

  private:
    std::optional<double> limit_;
    OutputFile junit_;
    std::string suite_;
};

} // namespace speedbump::cli
