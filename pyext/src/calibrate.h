// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "session.h"

// What a delay costs beyond its spin, so that it can be taken off.
namespace speedbump::python {

// The cost of one read of the clock, at least 1; measured once per process.
uint64_t clock_overhead_ns();

// Spins for at least `ns`, holding the GIL. Nothing ends it early.
void spin_ns(uint64_t ns);

// Measures what the hook adds to a call beyond its spin, once per process, into
// g_live.overhead_ns. While there is no session; hooks and unhooks the running interpreter. False
// with a Python error set. Takes 1 to 3 ms.
bool calibrate_hook(Interpreter& interpreter);

} // namespace speedbump::python
