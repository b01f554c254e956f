// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

#include "cpython/interpreter.h"
#include "util/fd.h"
#include "util/result.h"

namespace speedbump::inject {

struct DebuggerSupportRequest {
    pid_t pid;
    cpython::Interpreter interpreter;
    int core;           // the core's file
    std::string source; // load_source() (bootstrap.h)
    std::chrono::milliseconds timeout;
};

// The way in where ptrace is refused (another tracer, say) but memory may be written: asks the
// main thread to run a script at its next evaluation of Python code. A thread that is blocked
// never gets there; then the request is taken back, unless another debugger's has taken its
// place, and the time-out says which. The loader's end of the channel, on which "loaded" was
// received.
Result<Fd> enter_by_debugger_support(const DebuggerSupportRequest& request);

} // namespace speedbump::inject
