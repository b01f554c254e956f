// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "abi.h"
#include "cpython/interpreter.h"
#include "process/source.h"
#include "util/result.h"

namespace speedbump::cpython {

inline constexpr uint32_t kNone = SB_NO_FIELD; // this version has no such field

// Where the fields that the reader needs lie in one build of CPython: bytes from the start of
// their structure; those that the walk of frames needs (bpf/abi.h), and the others. The structures
// are private, but fixed within a minor version.
struct Layout : sb_python_layout {
    Layout(); // of no version: there are no fields

    int minor = 0;
    bool free_threaded = false;

    uint32_t runtime_head = kNone; // _PyRuntime: first interpreter
    // 3.10, 3.11: the GIL's state in _PyRuntime; later in an interpreter a pointer to it.
    uint32_t gil = kNone;
    uint32_t gil_interval = kNone; // microseconds that a thread waits before it asks for the GIL
    uint32_t interpreter_id = kNone;
    uint32_t interpreter_next = kNone;
    uint32_t interpreter_threads = kNone;    // first thread
    uint32_t interpreter_generation = kNone; // counts code objects that were freed (3.14+)
    uint32_t thread_next = kNone;
    uint32_t thread_id = kNone; // pthread_self()
    uint32_t thread_native_id = kNone;
    uint32_t code_size = kNone;            // instructions (3.11+)
    uint32_t code_bytes = kNone;           // 3.10: pointer to a bytes object; later the bytecode
    uint32_t code_bytecode_copies = kNone; // free-threaded: pointer to {size, pointers}
    uint32_t object_type = kNone;
    uint32_t bytes_size = kNone;
    uint32_t bytes_data = kNone;
    uint32_t text_data = kNone; // of a str that is not ASCII

    // Which bit of the state word of a str its `kind` starts at.
    uint32_t text_kind_shift() const { return free_threaded && minor >= 14 ? 8 : 2; }
};

// The layout of a supported interpreter: from a table for 3.10 to 3.12, from the debug offsets in
// its own memory from 3.13 on. kUnsupported with the reason for other versions, debug builds of
// 3.10 to 3.12, and interpreters without (credible) debug offsets.
Result<Layout> layout_of(const process::Source& source, const Interpreter& interpreter);

} // namespace speedbump::cpython
