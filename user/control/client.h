// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "util/result.h"

namespace speedbump::control {

// The PIDs of the live sessions whose sockets are in the directory, ascending. Sockets that nobody
// listens on any more are removed. A missing directory holds no sessions.
Result<std::vector<pid_t>> live_sessions(const std::string& directory);

// Sends one request line and gives the answer, a JSON object of speedbump/control/1 that says
// "ok": true; one that does not is the Error it tells of. kNotFound when there is no such session
// or it ends meanwhile, kTimeout when it does not answer in time.
Result<std::string> ask_session(const std::string& directory, pid_t pid, const std::string& request,
                                std::chrono::milliseconds timeout);

} // namespace speedbump::control
