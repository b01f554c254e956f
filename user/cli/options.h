// SPDX-License-Identifier: MIT
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "session/types.h"
#include "util/result.h"

// Options that several commands share. A wrong value is refused while parsing (exit status 2).
namespace speedbump::cli {

struct OutputArguments {
    bool json = false;
    std::string file; // empty: stdout
    bool verbose = false;
    bool quiet = false;
};

struct SessionArguments {
    std::string targets_path;
    session::SessionOptions session;
    std::chrono::nanoseconds stats_interval = std::chrono::seconds(1);
    std::string control_fifo; // empty: only the session's socket
    OutputArguments output;
};

// An option whose value is a duration as in a targets file ("10us", "1.5s"), at most `longest`
// where that is given.
CLI::Option* add_duration(CLI::App& command, const std::string& names,
                          std::optional<std::chrono::nanoseconds>& value,
                          const std::string& description,
                          std::optional<std::chrono::nanoseconds> longest = {});

// -v, -q; also sets the level of the log.
void add_verbosity(CLI::App& command, OutputArguments& arguments);
// --json, -o, and these.
void add_output_options(CLI::App& command, OutputArguments& arguments);

// TARGETS and everything that `attach` and `run` have in common.
void add_session_options(CLI::App& command, SessionArguments& arguments);

// "2%", "0.02": a share above 0.
Result<double> parse_share(const std::string& option, const std::string& text);

// What an option's value must be; the error names the value and what it should have been.
CLI::Validator number_between(double min, double max);
CLI::Validator positive_number();
CLI::Validator process_id();
CLI::Validator one_of(std::vector<std::string> words);

// An option whose value is one of some words.
template <typename Value>
CLI::Option* add_choice(CLI::App& command, const std::string& names, Value& value,
                        const std::map<std::string, Value>& choices,
                        const std::string& description) {
    std::vector<std::string> words;
    for (const auto& [word, unused] : choices) words.push_back(word);
    return command
        .add_option_function<std::string>(
            names, [&value, choices](const std::string& word) { value = choices.at(word); },
            description)
        ->check(one_of(words));
}

// -p/--pid, repeatable, also "1,2".
CLI::Option* add_pids(CLI::App& command, std::vector<pid_t>& pids);

// --no-children: makes it false.
CLI::Option* add_no_children(CLI::App& command, bool& follow_children);

} // namespace speedbump::cli
