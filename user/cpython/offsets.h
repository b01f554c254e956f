// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

// Where CPython keeps what is read of it from outside. Private structures, but fixed within a minor
// version; beside this are the tables of those versions that say nothing of themselves
// (layout_3*.inc, which tests/check/layouts.sh compares with the headers).
namespace speedbump::cpython {

using u64 = uint64_t;

// struct _Py_DebugOffsets as 3.13, 3.14 and 3.15 have it, up to what is used here.
struct Offsets313 {
    char cookie[8];
    u64 version, free_threaded;
    struct {
        u64 size, finalizing, interpreters_head;
    } runtime;
    struct {
        u64 size, id, next, threads_head, gc, imports, sysdict, builtins, ceval_gil, gil,
            gil_enabled, gil_locked, gil_holder;
    } interpreter;
    struct {
        u64 size, prev, next, interp, current_frame, thread_id, native_thread_id, datastack, status;
    } thread;
    struct {
        u64 size, previous, executable, instr_ptr, localsplus, owner;
    } frame;
    struct {
        u64 size, filename, name, qualname, linetable, firstlineno, argcount, names, kinds,
            bytecode;
    } code;
    struct {
        u64 size, ob_type;
    } object;
    u64 type_tuple_list_dict_float_long[4 + 3 + 3 + 3 + 2 + 3];
    struct {
        u64 size, ob_size, ob_sval;
    } bytes;
    struct {
        u64 size, state, length, ascii_size;
    } text;
};
static_assert(offsetof(Offsets313, text) == 67 * 8);

// The fields of a thread and an interpreter by which a debugger has code run (3.14 and later).
struct DebuggerSupport {
    u64 eval_breaker, remote_debugger_support, remote_debugging_enabled, pending_call, script_path,
        script_path_size;
};

struct Offsets314 {
    char cookie[8];
    u64 version, free_threaded;
    decltype(Offsets313::runtime) runtime;
    struct Interpreter {
        u64 size, id, next, threads_head, threads_main, gc, imports, sysdict, builtins, ceval_gil,
            gil, gil_enabled, gil_locked, gil_holder, code_generation, tlbc_generation;
    } interpreter;
    decltype(Offsets313::thread) thread;
    struct Frame {
        u64 size, previous, executable, instr_ptr, localsplus, owner, stackpointer, tlbc_index;
    } frame;
    struct Code {
        u64 size, filename, name, qualname, linetable, firstlineno, argcount, names, kinds,
            bytecode, tlbc;
    } code;
    decltype(Offsets313::object) object;
    u64 type_tuple_list_set_dict_float_long[4 + 3 + 3 + 4 + 3 + 2 + 3];
    decltype(Offsets313::bytes) bytes;
    decltype(Offsets313::text) text;
    u64 gc_gen_llist[2 + 4 + 2];
    DebuggerSupport debugger_support;
};
static_assert(offsetof(Offsets314, debugger_support) == 712);

struct Offsets315 {
    char cookie[8];
    u64 version, free_threaded;
    decltype(Offsets313::runtime) runtime;
    Offsets314::Interpreter interpreter;
    struct {
        u64 size, prev, next, interp, current_frame, base_frame, last_profiled_frame,
            last_profiled_frame_seq, thread_id, native_thread_id, datastack, status, holds_gil,
            gil_requested, current_exception, exc_state;
    } thread;
    u64 err_stackitem;
    Offsets314::Frame frame;
    Offsets314::Code code;
    decltype(Offsets313::object) object;
    u64 type_heap_tuple_list_set_dict_float_long[6 + 2 + 3 + 3 + 4 + 3 + 2 + 3];
    decltype(Offsets313::bytes) bytes;
    decltype(Offsets313::text) text;
    u64 compact_text_size;
    u64 gc_gen_llist[5 + 4 + 2];
    DebuggerSupport debugger_support;
};
static_assert(offsetof(Offsets315, debugger_support) == 840);

// _PyRuntime of 3.10 to 3.12: its `initialized`. 3.11 put _initialized in front.
constexpr u64 initialized_offset(int minor) {
    return minor >= 11 ? 16 : 12;
}

// In the debug offsets at the start of _PyRuntime, of 3.13 and later, and of 3.14 and later.
inline constexpr u64 kInterpretersHead = offsetof(Offsets313, runtime.interpreters_head);
inline constexpr u64 kThreadsMain = offsetof(Offsets314, interpreter.threads_main);

// Of a version; 0: it has none that is known.
constexpr u64 debugger_support_offset(int minor) {
    switch (minor) {
        case 14:
            return offsetof(Offsets314, debugger_support);
        case 15:
            return offsetof(Offsets315, debugger_support);
        default:
            return 0;
    }
}

} // namespace speedbump::cpython
