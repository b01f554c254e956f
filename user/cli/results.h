// SPDX-License-Identifier: MIT
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/options.h"
#include "cli/output.h"
#include "experiment/document.h"
#include "util/result.h"

// What `experiment` and `report` have in common: results as a table, JSON and HTML.
namespace speedbump::cli {

struct ResultFiles {
    std::string json; // -o
    std::string html; // --html
};

// -o, --html, --json, -v, -q; also sets the level of the log.
void add_result_options(CLI::App& command, ResultFiles& files, OutputArguments& output);

class ResultWriter {
  public:
    // Opens the files, so that it is known early that they can be written. What they held before
    // stays until write().
    static Result<ResultWriter> open(const ResultFiles& files, const OutputArguments& arguments);

    Output& output() { return output_; }
    // Writes all that was asked for; the exit status of the command.
    Result<int> write(const experiment::Document& document);

  private:
    explicit ResultWriter(Output output) : output_(std::move(output)) {}
    Output output_;
    OutputFile json_, html_;
};

} // namespace speedbump::cli
