// SPDX-License-Identifier: MIT
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// What CPython tells in no other way than by its state. Called with the GIL held, which none of
// these gives up where sb_keeps_gil() says so.

// Whether the state lies in the running Python as in the one whose headers this was compiled with:
// one core serves all patch releases of a minor version, and some have moved it (gh-149242). If
// not, no other interpreter is visited, and no frozen object shown. Asked once.
int sb_layout_is_known(void);

// The IDs of the interpreters, but for the running one, that can be visited, up to `room`. Counts
// in `*closed` those that can't: who ends one, or makes it, may do so while we are in it. Where the
// layout is not known all of them are one.
size_t sb_list_others(int64_t* ids, size_t room, size_t* closed);

// Has the calling thread run in that interpreter instead of its own; null when it can't be visited
// (any more). Nobody ends the interpreter before sb_leave().
void* sb_visit(int64_t id);
void sb_leave(void* visit);

// Whether there still is such an interpreter, which may be one that ends.
int sb_is_there(int64_t id);

// Whether a visitor must not give the GIL up, nor run Python code.
int sb_keeps_gil(void);

// Whether threads of the running interpreter run beside those of others: it has a GIL of its own,
// or there is none. In doubt they do.
int sb_runs_beside_others(void);

// Calls `visit` with every object that gc.freeze() has put aside, where the collector passes over
// them when it shows all objects; some it may show as well.
void sb_visit_frozen(int (*visit)(PyObject*, void*), void* argument);

// Gives the GIL up; the thread that it is to be taken back as.
PyThreadState* sb_give_gil(void);

// Takes it back. `is_main`: it is the main interpreter's.
//
// A thread that waits in CPython asks for the GIL after a whole switch interval (5 ms) without
// being woken: where the one that has it gives it up more often, as each call through ctypes or
// into PyTorch does, each time wakes it, and it finds the GIL taken again where it is slow to run
// (take_gil() in Python/ceval_gil.c). So the thread of sb_begin_gil() waits for up to 5 ms
// until it is free, and then asks: the interval is SB_ASKING_US from there until it gives the GIL
// up again, as its bytecode may have to, too, but for 0.1 s at most: a call into C may keep the GIL
// for long, and each thread that waits for it wakes up 15,000 times a second. Another thread, and
// this one where it is not known where the interval lies, waits as any does.
void sb_take_gil(PyThreadState* thread, int is_main);

#define SB_ASKING_US 1UL

// Leaves the GIL, which sb_give_gil() has given up as `thread`, to the others for `ns`: from when
// one that waits for it has it, if one does. Where CPUs are busy that one is woken long before it
// runs, and who takes the GIL back meanwhile has left it to nobody. Not for longer than 0.1 s more.
void sb_leave_gil(const PyThreadState* thread, int is_main, int64_t ns);

// From here on the calling thread asks, if no other does, until sb_end_gil(). GIL held.
void sb_begin_gil(void);
void sb_end_gil(void);

// Fork handlers: nobody asks from before a fork on, and in its child.
void sb_before_fork(void);
void sb_after_fork_in_parent(void);
void sb_after_fork_in_child(void);

#ifdef __cplusplus
}
#endif
