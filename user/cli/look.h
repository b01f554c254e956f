// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "report/check.h"
#include "targets/target.h"
#include "util/result.h"

// Looking at processes and files without attaching anything: what `check`, `list` and `doctor`
// need of /proc.
namespace speedbump::cli {

struct LookArguments {
    std::vector<pid_t> pids;
    bool follow_children = true;
    std::vector<std::string> executables;
    bool entry_only = false;
    bool jumps = false; // of the in-process engine
};

// Resolves the native lines against the processes (and their descendants) and files; kNotFound
// when one of them is not there.
Result<report::CheckReport> look_for_targets(const targets::TargetsFile& file,
                                             const LookArguments& arguments);

// The processes and all their descendants, as /proc lists them now, ascending, each once.
std::vector<pid_t> with_descendants(const std::vector<pid_t>& pids);

// Whether a function of this file (or module) and name is meant: the glob matches the name,
// "FILE:NAME", or "LAST PART OF FILE:NAME".
bool is_selected(const std::string& glob, const std::string& path, const std::string& name);

// The native functions in the files that the processes map whose symbol, demangled name, or
// "FILE:SYMBOL" (FILE: its path or its last part) matches the glob, each with the reason if it
// can't be probed.
Result<std::vector<report::ListedFunction>> list_native_functions(const std::vector<pid_t>& pids,
                                                                  const std::string& glob);

// What stands in the way of attaching to this process, if anything.
std::vector<engine::Check> check_process(pid_t pid);

} // namespace speedbump::cli
