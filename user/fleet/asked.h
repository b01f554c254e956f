// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "fleet/listed.h"
#include "util/result.h"

namespace speedbump::fleet {

// How to start an agent on each node of a Slurm job that runs, by squeue and scontrol. The error
// names the job; kUnsupported when one of the two is not there.
Result<std::vector<Launch>> ask_slurm(const std::string& job);
// The same in each running pod that the label selector matches, by kubectl. Other pods that match
// it are named in `left_out`.
Result<std::vector<Launch>> ask_kubernetes(const std::string& selector,
                                           std::vector<std::string>& left_out);

} // namespace speedbump::fleet
