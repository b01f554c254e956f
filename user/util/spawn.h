// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "util/fd.h"
#include "util/result.h"

namespace speedbump {

struct SpawnOptions {
    bool has_input = true;  // else its stdin is /dev/null
    bool has_errors = true; // else its stderr is
    bool is_group = false;  // a process group of its own
    // Its stdin and stderr, where these are given.
    const Fd* input = nullptr;
    const Fd* errors = nullptr;
};

// Starts a program, which is looked for in PATH, with `output` for its stdout. Its PID, for the
// caller to wait for; the errno of what can't be started.
Result<pid_t> spawn(const std::vector<std::string>& command, const Fd& output,
                    const SpawnOptions& options);

} // namespace speedbump
