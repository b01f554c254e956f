// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <span>

#include "util/result.h"

namespace speedbump::process {

// Whether the caller may look into a process and slow it. Root may; whoever else was given the
// capabilities for it may with processes that are its own in every sense: all user IDs are the
// caller's and it has no right that the caller lacks (/proc/PID belongs to root then, proc(5)).
bool is_ours(pid_t pid);

// kPermission that names the first of the processes that is not. One that is gone passes: who looks
// for it has better words.
Result<void> require_ours(std::span<const pid_t> pids);

} // namespace speedbump::process
