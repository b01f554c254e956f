// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "engine/features.h"

// What a host can do by its processor: machine_x86_64.cpp, machine_aarch64.cpp.
namespace speedbump::engine {

// Whether the kernel has turned the probed nop at `code` into a call.
bool has_become_call(const volatile unsigned char* code);

// Whether a forked child can make the call that a nop has become.
bool child_reaches_call(const volatile unsigned char* code);

// Whether this kernel turns no nop into a call, for where that can't be tried.
bool has_no_trampoline();

// What people read for elf::SiteKind::kOptimizedNop.
const char* nop_kind_name();

// What doctor says of this processor: what the kernel does better on it, and what is not done yet.
void add_machine_checks(std::vector<Check>& checks, const Features& features);

} // namespace speedbump::engine
