// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>

#include "cpython/interpreter.h"
#include "cpython/layout.h"
#include "process/source.h"

namespace speedbump::cpython {

// The GIL (struct _gil_runtime_state) of the interpreter whose state lies at `state`, of a Python
// whose _PyRuntime lies at `runtime`. Nothing where that can't be read.
std::optional<uint64_t> gil_of(const process::Source& source, const Layout& layout,
                               uint64_t runtime, uint64_t state);

// Where fields of a GIL lie in a process.
struct GilPlace {
    uint64_t interval; // unsigned long: microseconds that a thread waits before it asks for the GIL
    uint64_t locked;   // int: 1 while a thread has it
};

// That of the main interpreter, which lives as long as the process, where a thread of that has it
// or had it last. Nothing where none did, there is no GIL, or it is not known where it lies: who
// writes to `interval` must be sure.
std::optional<GilPlace> main_gil(const process::Source& source, const Interpreter& interpreter);

} // namespace speedbump::cpython
