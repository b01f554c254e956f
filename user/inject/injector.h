// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>

#include "cpython/interpreter.h"
#include "util/fd.h"
#include "util/result.h"

namespace speedbump::inject {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

struct InjectOptions {
    std::string core; // path of the extension module that goes in
    // How long to wait for a thread that can be borrowed, and then for the interpreter to let
    // code run (the GIL).
    milliseconds safe_point_timeout{5000};
    milliseconds interpreter_timeout{10000};
    // A younger process is waited for: one that is attached to inside its after-fork hooks dies now
    // and then (30 ms were enough, and the clock's grain is 10 ms). One that has called exec since
    // may be as young as it likes.
    milliseconds minimum_age{40};
};

// What getting in took.
struct Timing {
    nanoseconds stopped{0};   // the target's threads were held, in all
    unsigned stops = 0;       // how many times
    nanoseconds to_thread{0}; // from the call until a thread of ours ran in the target
    nanoseconds to_code{0};   // from the call until the first Python code of ours had run
};

// A way to the core in one interpreter.
struct Injection {
    // Our end of a SOCK_SEQPACKET pair. The core has the other end; its serve() speaks the
    // protocol. Closing it (also by dying) makes the core remove all it has done. No descriptor of
    // this end ever exists in the target, so the hang-up can't be hidden by a forked child.
    Fd channel;
    cpython::Interpreter interpreter;
    Timing timing;
    bool by_debugger_support = false; // came in by PEP 768, ptrace being refused
};

// Loads a core into the (first initialised) interpreter of a running process and calls its
// serve(channel, core). Returns once the core is loaded. The process is never stopped for
// long, never left with half of it: on every error, time-out included, nothing of ours remains that
// would run later. kNotFound: no such process or no interpreter in it; kUnsupported: an interpreter
// or state that can't be entered; kPermission: ptrace refused; kTimeout: no thread to borrow, or
// the interpreter never let go of the GIL.
Result<Injection> inject(pid_t pid, const InjectOptions& options);

} // namespace speedbump::inject
