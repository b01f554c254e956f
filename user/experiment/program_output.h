// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "util/fd.h"
#include "util/result.h"

namespace speedbump::experiment {

struct ProgramOutput {
    std::string text; // of stdout
    int status = 0;   // as waitpid() gives it
};

// Runs a program, which is looked for in PATH, until its end, with nothing on its stdin. It has a
// process group of its own, which is killed when it has not ended its output within `patience`
// (kTimeout) or prints more than `max_size` bytes (kInvalid). `errors` is its stderr where it is
// given, else it has this program's. The errno of what can't be started.
Result<ProgramOutput> output_of(std::vector<std::string> command,
                                std::chrono::milliseconds patience, size_t max_size,
                                const Fd* errors = nullptr);

} // namespace speedbump::experiment
