// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "inspect/source.h"
#include "process/interpreter.h"
#include "util/result.h"

namespace speedbump::inspect {

inline constexpr uint32_t kNone = UINT32_MAX; // this version has no such field

// Where the fields that the reader needs lie in one build of CPython: bytes from the start of
// their structure. The structures are private, but fixed within a minor version.
struct Layout {
    int minor = 0;
    bool free_threaded = false;

    uint32_t runtime_head = kNone; // _PyRuntime: first interpreter
    // 3.10, 3.11: the GIL's state in _PyRuntime; later in an interpreter a pointer to it.
    uint32_t gil = kNone;
    uint32_t gil_locked = kNone;
    uint32_t gil_holder = kNone;
    uint32_t interpreter_id = kNone;
    uint32_t interpreter_next = kNone;
    uint32_t interpreter_threads = kNone;    // first thread
    uint32_t interpreter_generation = kNone; // counts code objects that were freed (3.14+)
    uint32_t thread_next = kNone;
    uint32_t thread_frame = kNone; // innermost frame; 3.11, 3.12: pointer to the C frame
    uint32_t cframe_frame = kNone; // 3.11, 3.12: C frame: innermost frame
    uint32_t thread_id = kNone;    // pthread_self()
    uint32_t thread_native_id = kNone;
    uint32_t frame_previous = kNone;
    uint32_t frame_code = kNone;
    uint32_t frame_ip = kNone; // 3.10: an int, the number of the instruction
    uint32_t frame_owner = kNone;
    uint32_t frame_entry = kNone;         // 3.11: whether C code called the interpreter for it
    uint32_t frame_generator = kNone;     // 3.10: the generator whose frame it is
    uint32_t frame_bytecode_copy = kNone; // free-threaded: which copy of the bytecode runs
    uint32_t code_size = kNone;           // instructions (3.11+)
    uint32_t code_file = kNone;
    uint32_t code_name = kNone; // qualified, but for 3.10
    uint32_t code_lines = kNone;
    uint32_t code_first_line = kNone;
    uint32_t code_version = kNone;         // unique to a code object of an interpreter
    uint32_t code_bytes = kNone;           // 3.10: pointer to a bytes object; later the bytecode
    uint32_t code_bytecode_copies = kNone; // free-threaded: pointer to {size, pointers}
    uint32_t object_type = kNone;
    uint32_t bytes_size = kNone;
    uint32_t bytes_data = kNone;
    uint32_t text_length = kNone; // str
    uint32_t text_state = kNone;
    uint32_t text_ascii_data = kNone;
    uint32_t text_data = kNone;

    // Bytes from the start of a frame or code object that hold all of the fields above.
    uint32_t frame_bytes() const;
    uint32_t code_header_bytes() const;
    // Which bit of the state word of a str its `kind` starts at.
    uint32_t text_kind_shift() const { return free_threaded && minor >= 14 ? 8 : 2; }
    uint32_t text_ascii_bit() const { return 16U << text_kind_shift(); }
};

// The layout of a supported interpreter: from a table for 3.10 to 3.12, from the debug offsets in
// its own memory from 3.13 on. kUnsupported with the reason for other versions, debug builds of
// 3.10 to 3.12, and interpreters without (credible) debug offsets.
Result<Layout> layout_of(const Source& source, const process::Interpreter& interpreter);

} // namespace speedbump::inspect
