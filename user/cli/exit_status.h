// SPDX-License-Identifier: MIT
#pragma once

#include "lifecycle/child.h"
#include "util/result.h"

namespace speedbump::cli {

// The exit statuses of speedbump(1). `run` gives the program's own instead, 126 and 127 as shells
// do, and 128 + N when a signal ended it.
enum ExitStatus : int {
    kDone = 0,
    kFailed = 1,
    kWrongUsage = 2,
    kNothingMatched = 3,
    kNoPermission = 4,
    kHostCannot = 5,
    kWorse = 6,   // --fail-if-worse: it is
    kNotTold = 7, // --fail-if-worse: what was measured does not tell
    kNotExecutable = lifecycle::kProgramNotRunnable,
    kNoSuchProgram = lifecycle::kProgramNotThere,
    kSignalBase = lifecycle::kEndedBySignal,
};

constexpr ExitStatus exit_status(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::kUsage:
        case ErrorKind::kTargetsFile:
            return kWrongUsage;
        case ErrorKind::kNothingMatched:
            return kNothingMatched;
        case ErrorKind::kPermission:
            return kNoPermission;
        case ErrorKind::kUnsupported:
            return kHostCannot;
        case ErrorKind::kNotFound:
        case ErrorKind::kInvalid:
        case ErrorKind::kIo:
        case ErrorKind::kTimeout:
            return kFailed;
    }
    return kFailed;
}

} // namespace speedbump::cli
