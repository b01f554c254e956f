// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "experiment/runner.h"
#include "fleet/combine.h"
#include "fleet/hosts.h"
#include "util/result.h"

namespace speedbump::fleet {

// An experiment on many hosts.
struct FleetRequest {
    experiment::Request experiment;    // its processes are looked for on each host
    std::vector<Launch> launches;      // as given with --at, or listed
    std::string binary = "speedbump";  // what is started there
    std::optional<std::string> exe;    // processes by their executable's name
    bool each = false;                 // --where each
    std::vector<Combination> progress; // of each of the experiment's progress points
    std::string version;               // of this program; theirs must be the same
};

// "sum:native:exe:f", "min:...", "at:2:...": how the point is made of so many hosts', which is
// taken off the text. Without one it is their sum. kUsage.
Result<Combination> take_combination(std::string& progress, size_t hosts);
// "sum", "min", "at:2".
std::string to_string(const Combination& combination);

// Starts the agents and has them attach: all of them, or the error of the first that can't names
// its host.
Result<std::unique_ptr<Hosts>> gather(const FleetRequest& request, const experiment::Hooks& hooks);

// How many targets each of them has been asked for.
size_t functions_of(Hosts& hosts);
// Those of the document, with what each host has told of them.
std::vector<experiment::Target> targets_of(const FleetRequest& request, Hosts& hosts);

} // namespace speedbump::fleet
