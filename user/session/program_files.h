// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "util/result.h"

namespace speedbump::session {

// The files that running a command will map, as far as that is known beforehand.
struct ProgramFiles {
    std::string executable;             // of the command, or of its script's interpreter
    std::vector<std::string> libraries; // by the dynamic loader's own account
};

// Finds the program as execvp(3) would, follows a script's #! line, and asks the program's dynamic
// loader (`ld.so --list`, which runs none of the program's code) for its libraries. kNotFound when
// there is no such program.
Result<ProgramFiles> program_files(const std::vector<std::string>& command);

} // namespace speedbump::session
