// SPDX-License-Identifier: MIT
#pragma once

#include "inject/process_state.h"

namespace speedbump::inject {

// What a stop does to a system call in which a thread is blocked.
enum class Interruption {
    // It goes on as if nothing had been: the kernel starts it over, with what is left of its time,
    // or it fails with EINTR and can be issued again as it is. It has moved no data.
    kHarmless,
    // The same, but how long it has waited already must be known (see left_of_wait()).
    kRelativeTime,
    // Not known to be any of these: it may have moved data, or its time would start over.
    kHarmful,
};

// By a list of what is proven good. Looks at the descriptor that the call waits for, where that is
// a socket or a terminal by a copy through `pid_fd`, which is the process's.
Interruption judge_interruption(pid_t pid, int pid_fd, const BlockedCall& call);

// Of the calls that a stop makes fail with EINTR, those that can be issued again.
bool may_be_issued_again(long number);
// Of these, those whose time-out, where they have one, is a number of ms in the fourth argument.
bool has_relative_time(long number);

} // namespace speedbump::inject
