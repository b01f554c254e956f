// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include "engine/inprocess/hook.h"
#include "util/result.h"

// The kernel's own function that reads CLOCK_MONOTONIC, in code that it maps into each process.
namespace speedbump::engine::inprocess {

// Whether it does so without a system call on this host.
bool vdso_reads_clock();

// Where a process has it, and how far its clock is ahead of the host's. kUnsupported: its vDSO is
// not the kernel's, or its children get another clock than it has.
Result<ClockFunction> vdso_clock_of(pid_t pid);

} // namespace speedbump::engine::inprocess
