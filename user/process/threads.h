// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <vector>

namespace speedbump::process {

// The threads of a process, by number; empty when it is gone. One that ends meanwhile ends the
// list.
std::vector<pid_t> read_threads(pid_t pid);

} // namespace speedbump::process
