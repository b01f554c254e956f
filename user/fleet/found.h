// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "util/result.h"

namespace speedbump::fleet {

// The processes whose executable has this name (the last part of its path) or this path, but this
// one. Where this program is a step of a Slurm job it is that job's processes only: others' may be
// on the same node. kNotFound when there are none.
Result<std::vector<pid_t>> find_by_exe(const std::string& name);

} // namespace speedbump::fleet
