// SPDX-License-Identifier: MIT
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "experiment/runner.h"
#include "fleet/gather.h"
#include "util/result.h"

namespace speedbump::cli {

// What `experiment` has on the command line for many hosts.
struct FleetArguments {
    std::vector<std::string> launches, jobs, selectors;
    std::optional<std::string> binary;
    std::optional<std::string> exe;
    std::optional<std::string> where;
};

// The command that is started on each host.
void add_agent(CLI::App& app, Action& action);

// --at, --at-slurm, --at-pods, --at-binary, --where; and --exe, which is one of those that say
// which processes.
void add_fleet_options(CLI::App& command, CLI::App& places, FleetArguments& arguments);

// Whether it is an experiment on many hosts. kUsage where it is not, but what is for one is given.
Result<bool> asks_for_fleet(const FleetArguments& arguments);
// How to start an agent on each of the hosts; asks Slurm and Kubernetes for theirs.
Result<std::vector<fleet::Launch>> find_hosts(const FleetArguments& arguments);

// The request for them, `progress` being as given with --progress. kUsage for what can't be done
// on many hosts.
Result<fleet::FleetRequest> complete_fleet(const FleetArguments& arguments,
                                           std::vector<fleet::Launch> launches,
                                           experiment::Request request,
                                           const std::vector<fleet::Combination>& progress);

} // namespace speedbump::cli
