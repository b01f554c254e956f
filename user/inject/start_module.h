// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <span>
#include <string>

#include "util/fd.h"
#include "util/result.h"

namespace speedbump::inject {

// The way to be in a Python before the first line of its program: a module `sitecustomize` that an
// interpreter imports at its start, in a zip file that exists in memory only and that is reached as
// /proc/OURS/fd/N/SECRET. It removes itself from what the program can see (but stays in the C
// environment, for Pythons that are started from there), waits up to two seconds for the core to be
// hooked, imports the sitecustomize that it stood before, if any, and is gone. It waits no longer
// than this process lives, and not at all in an interpreter for which there is no core.
class StartModule {
  public:
    // `tags`: the interpreters that cores are built for (Interpreter::tag()). `only`: the process
    // that is to wait, 0 for all.
    static Result<StartModule> create(std::span<const std::string> tags, pid_t only);

    // To be put in front of PYTHONPATH; good while this object lives. Whoever gets this process's
    // PID after its end does not know the last part, so a stale entry leads to no foreign code.
    const std::string& path_entry() const { return path_entry_; }

  private:
    StartModule(Fd file, std::string path_entry)
        : file_(std::move(file)), path_entry_(std::move(path_entry)) {}
    Fd file_;
    std::string path_entry_;
};

} // namespace speedbump::inject
