// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "cpython/interpreter.h"
#include "util/fd.h"
#include "util/result.h"

namespace speedbump::inject {

// Whether the interpreter has one: 3.14 and later, not switched off at build time.
bool has_debugger_mailbox(const cpython::Interpreter& interpreter);

// Where debuggers ask the main thread to run a script (PEP 768): the script's path and whether a
// request waits, in memory of the target. It has no lock and no owner: whoever may write to the
// target's memory may overwrite a request at any time.
struct DebuggerMailbox {
    // Of the program that was looked at: what the process execs since, maybe with other rights, is
    // not reached by it.
    Fd memory;
    uint64_t eval_breaker = 0;
    uint64_t pending_call = 0;
    uint64_t script_path = 0;
    uint64_t script_path_size = 0;
};

// kIo when the interpreter is there no more; kPermission also for a process that is not ours.
Result<DebuggerMailbox> find_debugger_mailbox(pid_t pid, const cpython::Interpreter& interpreter);

// Leaves a request to run the script of that path. Refused where a request of another waits.
Result<void> post_request(const DebuggerMailbox& mailbox, const std::string& path);

enum class Withdrawal {
    kTakenBack,
    kTakenUp,  // no request waits any more
    kAnothers, // one of another debugger waits, and is left there
    kFailed,   // the memory is not to be had: the process has ended, or runs another program
};

// Takes back the request of that path, if it is the one that waits: looked at right before, as
// nothing can be changed there in one step with it. System calls alone. `room` is as long as the
// path with its end.
Withdrawal withdraw_request(const DebuggerMailbox& mailbox, const std::string& path,
                            std::string& room);

} // namespace speedbump::inject
