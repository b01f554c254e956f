// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace speedbump {

// fork(), for a process that what is done to this one does not reach: in its copy of the memory it
// has a process group, a command line and a name of its own (without the program's, which is what
// `pkill` and `killall` go by), where that is allowed the top cgroup for its place, and the OOM
// killer passes it over, as far as it has the right to say so. What it can't evade is who kills all
// that has this executable, or everything.
//
// `flags`: of clone(2), CLONE_FILES and CLONE_VFORK. The child has no signal at its end: wait for
// it with __WALL. All signals are to be blocked by the caller, whose handlers the child has; it
// makes system calls and nothing else, as after any fork of a program with threads. 0 in the child;
// -1 and errno where there is none to be had.
pid_t fork_apart(const char* name, uint64_t flags = 0);

} // namespace speedbump
