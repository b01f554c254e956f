// SPDX-License-Identifier: MIT
#pragma once

// Everything that differs between CPython versions; no other file looks at PY_VERSION_HEX but
// cpython_state.c, which is in C, as CPython's own headers are.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX < 0x030A0000
#error "speed_bump needs CPython 3.10 or later"
#endif

// sys.monitoring (PEP 669), else the frame evaluation hook (PEP 523).
#if PY_VERSION_HEX >= 0x030C0000
#define SB_MONITORING 1
#else
#define SB_MONITORING 0
#endif

// Code objects know their qualified name.
#if PY_VERSION_HEX >= 0x030B0000
#define SB_CODE_HAS_QUALNAME 1
#else
#define SB_CODE_HAS_QUALNAME 0
#endif

// A Python call under a frame evaluation hook uses the C stack, and without one it does not.
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
#define SB_HOOK_RECURSES 1
#else
#define SB_HOOK_RECURSES 0
#endif

// The collector does not track functions of a program with threads: they live for ever (gh-117783).
#if defined(Py_GIL_DISABLED) && PY_VERSION_HEX < 0x030E0000
#define SB_GC_LACKS_FUNCTIONS 1
#else
#define SB_GC_LACKS_FUNCTIONS 0
#endif

#ifdef Py_GIL_DISABLED
#define SB_FREE_THREADED 1
#else
#define SB_FREE_THREADED 0
#endif

#if !SB_MONITORING && SB_CODE_HAS_QUALNAME
#define Py_BUILD_CORE 1
#include "internal/pycore_frame.h"
#include "opcode.h"
#undef Py_BUILD_CORE
#elif !SB_MONITORING
#include <frameobject.h>
#include <opcode.h>
#endif

#include "cpython_state.h"

namespace speedbump::python {

inline bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing() != 0;
#else
    return _Py_IsFinalizing() != 0;
#endif
}

inline Py_ssize_t request_code_extra_index(freefunc release) {
#if PY_VERSION_HEX >= 0x030C0000
    return PyUnstable_Eval_RequestCodeExtraIndex(release);
#else
    return _PyEval_RequestCodeExtraIndex(release);
#endif
}

// What was stored in the code object at `index`, or null.
inline void* code_extra(PyCodeObject* code, Py_ssize_t index) {
#if PY_VERSION_HEX >= 0x030C0000
    void* extra = nullptr;
    PyUnstable_Code_GetExtra(reinterpret_cast<PyObject*>(code), index, &extra);
    return extra;
#else
    // Inlined _PyCode_GetExtra: on these versions every call of the program comes here.
    struct Extras {
        Py_ssize_t size;
        void* values[1];
    };
    const auto* extras = static_cast<const Extras*>(code->co_extra);
    return extras != nullptr && extras->size > index ? extras->values[index] : nullptr;
#endif
}

// False (with a Python error set) when memory ran out.
inline bool set_code_extra(PyCodeObject* code, Py_ssize_t index, void* value) {
#if PY_VERSION_HEX >= 0x030C0000
    return PyUnstable_Code_SetExtra(reinterpret_cast<PyObject*>(code), index, value) == 0;
#else
    return _PyCode_SetExtra(reinterpret_cast<PyObject*>(code), index, value) == 0;
#endif
}

// Calls `visit` with every object that the collector tracks, until it returns 0; it must not run
// any Python.
inline bool visit_objects(int (*visit)(PyObject*, void*), void* argument) {
#if SB_MONITORING
    struct Visit {
        int (*visit)(PyObject*, void*);
        void* argument;
        int goes_on;
    } until{visit, argument, 1};
    PyUnstable_GC_VisitObjects(
        [](PyObject* object, void* self) {
            auto& own = *static_cast<Visit*>(self);
            return own.goes_on = own.visit(object, own.argument);
        },
        &until);
    if (until.goes_on != 0) sb_visit_frozen(visit, argument);
    return true;
#else
    // gc.get_objects() would take a reference to each of them, all in one hold of the GIL, which
    // gives a forked child pages of its own. The rings of the generations lie one after the other,
    // each with its head in it; what was made last is the last of the youngest
    // (_PyObject_GC_TRACK() in Include/internal/pycore_object.h, gc_runtime_state in pycore_gc.h).
    struct Link {
        uintptr_t next; // the lowest bits are flags
        uintptr_t previous;
    };
    struct Generation {
        Link head;
        int threshold;
        int count;
    };
    constexpr int kGenerations = 3;
    constexpr uintptr_t kFlags = 3;
    const auto at = [](uintptr_t link) { return reinterpret_cast<Link*>(link & ~kFlags); };
    PyObject* newest = PyList_New(0);
    if (newest == nullptr) return false;
    const auto* youngest =
        reinterpret_cast<Generation*>(at((reinterpret_cast<Link*>(newest) - 1)->next));
    int goes_on = 1;
    for (int i = 0; i < kGenerations && goes_on != 0; ++i) {
        const Link* head = &youngest[i].head;
        for (Link* link = at(head->next); link != head && goes_on != 0; link = at(link->next))
            goes_on = visit(reinterpret_cast<PyObject*>(link + 1), argument);
    }
    Py_DECREF(newest);
    if (goes_on != 0) sb_visit_frozen(visit, argument);
    return true;
#endif
}

#if !SB_MONITORING
#if SB_CODE_HAS_QUALNAME
using Frame = _PyInterpreterFrame;

// Whether the function's execution starts with this evaluation. A generator's frame is evaluated
// once to make the generator object; it starts when it is first resumed after that.
inline bool is_start(Frame* frame, int throwflag) {
    if (throwflag) return false;
    constexpr int kGenerator = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;
    const int last = _PyInterpreterFrame_LASTI(frame);
    if (frame->f_code->co_flags & kGenerator) {
        return last >= 0 && _Py_OPCODE(*frame->prev_instr) == RETURN_GENERATOR;
    }
    return last < 0;
}
#else
using Frame = PyFrameObject;

inline bool is_start(Frame* frame, int throwflag) {
    return !throwflag && frame->f_lasti < 0;
}
#endif
#endif

} // namespace speedbump::python
