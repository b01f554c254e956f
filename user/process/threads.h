// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace speedbump::process {

// Where glibc keeps the id of a thread: offsetof(struct pthread, tid). threads_MACHINE.cpp.
extern const uint64_t kPthreadTid;

// The threads of a process, by number; empty when it is gone. One that ends meanwhile ends the
// list.
std::vector<pid_t> read_threads(pid_t pid);

} // namespace speedbump::process
