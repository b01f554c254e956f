// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "util/fd.h"
#include "util/result.h"

namespace speedbump::inject {

// Writes to memory of a process that it can't write to itself: its code. `memory`:
// process::open_memory() of it, opened before `address` was found, so that nothing is written where
// another program runs by now. Kernels since 6.12 may want the writer to trace the process
// meanwhile (proc_mem.force_override=ptrace, the default of Debian sid; proc_mem_foll_force() in
// fs/proc/base.c): it is traced for that moment, by a thread of ours, and not stopped. kUnsupported
// where the kernel lets nobody do it; errors as process::access_error() otherwise.
Result<void> write_code(pid_t pid, const Fd& memory, uint64_t address, const void* data,
                        size_t size);

} // namespace speedbump::inject
