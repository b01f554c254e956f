// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "cpython/interpreter.h"
#include "engine/features.h"
#include "util/result.h"

// Where the Python cores are, and which of them may be loaded into other processes.
namespace speedbump::engine {

// Where the Python cores are looked for, in this order: $SPEEDBUMP_CORES (colon-separated; ignored
// in a program that has more rights than its caller), beside the running executable in the build
// tree, PREFIX/lib/speedbump/cores.
std::vector<std::string> core_directories();

// The path without links of the core for an interpreter: DIRECTORY/_core.SUFFIX or DIRECTORY/*/
// speed_bump/_core.SUFFIX. kUnsupported, with the command that builds it as hint, when there is
// none; kPermission when somebody else could change it (require_trusted).
Result<std::string> find_core(const cpython::Interpreter& interpreter,
                              const std::vector<std::string>& directories);

// The tags (Interpreter::tag()) of the interpreters that there is a core for, each once, sorted.
std::vector<std::string> core_tags(const std::vector<std::string>& directories);

// What doctor says about cores: which Pythons can be slowed, and what is refused.
Check check_cores(const std::vector<std::string>& directories);

// Whether the code in a file may run in other processes. kPermission, with the remedy as hint, when
// the file or a directory above it belongs to another user than root, the caller and the owner of
// this program's file, or others could write to it; a program that has more rights than its caller
// trusts root alone. `path` must be absolute and free of links.
Result<void> require_trusted(const std::string& path);

} // namespace speedbump::engine
