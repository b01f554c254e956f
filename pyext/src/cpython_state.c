// SPDX-License-Identifier: MIT
// In C, as CPython's own headers are.
#define Py_BUILD_CORE 1
#include "cpython_state.h"

#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "internal/pycore_ceval.h"
#include "internal/pycore_gc.h"
#include "internal/pycore_gil.h"
#include "internal/pycore_interp.h"
#include "internal/pycore_long.h"
#include "internal/pycore_pystate.h"
#include "internal/pycore_runtime.h"

// From 3.15 on a guard keeps an interpreter from ending (PEP 788).
#if PY_VERSION_HEX >= 0x030F0000
#define SB_GUARDS 1
#else
#define SB_GUARDS 0
#endif

#if PY_VERSION_HEX >= 0x030C0000
#define SB_MODULES(state) (state)->imports.modules
#else
#define SB_MODULES(state) (state)->modules
#endif

// What the interpreter says itself, for debuggers, of what lies around all that is used here. The
// sizes are no matter: they change with options of its build that no header tells of
// (--enable-experimental-jit).
static bool offsets_agree(void) {
#if PY_VERSION_HEX >= 0x030D0000
    const _Py_DebugOffsets *told = &_PyRuntime.debug_offsets;
    return told->runtime_state.interpreters_head == offsetof(_PyRuntimeState, interpreters.head) &&
           told->interpreter_state.id == offsetof(PyInterpreterState, id) &&
           told->interpreter_state.next == offsetof(PyInterpreterState, next) &&
           told->interpreter_state.threads_head == offsetof(PyInterpreterState, threads.head) &&
           told->interpreter_state.gc == offsetof(PyInterpreterState, gc) &&
           told->interpreter_state.imports_modules ==
               offsetof(PyInterpreterState, imports.modules) &&
           told->interpreter_state.ceval_gil == offsetof(PyInterpreterState, ceval.gil) &&
           told->thread_state.interp == offsetof(PyThreadState, interp) &&
           told->thread_state.status == offsetof(PyThreadState, _status);
#else
    return true;
#endif
}

// What functions of the interpreter return against what lies where the headers say.
static bool answers_agree(void) {
    PyInterpreterState *own = PyInterpreterState_Get();
    PyObject *dict = PyInterpreterState_GetDict(own); // may make it
    return PyThreadState_Get()->interp == own && own->id == PyInterpreterState_GetID(own) &&
           own->dict == dict && SB_MODULES(own) == PyImport_GetModuleDict() &&
           _PyRuntime.interpreters.main == PyInterpreterState_Main();
}

// The same of what lies after the audit hooks, which no function tells of.
static bool audit_hooks_agree(void) {
#if PY_VERSION_HEX >= 0x030C0000 && !SB_GUARDS
    PyObject *builtins = PyDict_GetItemString(PyImport_GetModuleDict(), "builtins");
    if (builtins == NULL || !PyModule_Check(builtins)) return false;
    PyObject *isinstance = PyDict_GetItemString(PyModule_GetDict(builtins), "isinstance");
    PyObject *zero = PyLong_FromLong(0);
    Py_XDECREF(zero);
    return isinstance != NULL &&
           isinstance == PyInterpreterState_Get()->callable_cache.isinstance &&
           zero == (PyObject *)&_PyLong_SMALL_INTS[_PY_NSMALLNEGINTS];
#else
    return true;
#endif
}

int sb_layout_is_known(void) {
    static int asked; // 1: it is, -1: it is not
    int known = __atomic_load_n(&asked, __ATOMIC_RELAXED);
    if (known == 0) {
        known = offsets_agree() && answers_agree() && audit_hooks_agree() ? 1 : -1;
        __atomic_store_n(&asked, known, __ATOMIC_RELAXED);
    }
    return known > 0;
}

// The lock of the list, under which no interpreter is freed, as HEAD_LOCK() in pycore_pystate.h. A
// thread that waits for it in PyMutex_Lock() would give the GIL up. False: it is held for long.
static bool lock_list(void) {
#if PY_VERSION_HEX >= 0x030D0000
    uint8_t *bits = &_PyRuntime.interpreters.mutex._bits;
    for (int i = 0; i < 100; ++i) {
        uint8_t open = 0;
        if (__atomic_compare_exchange_n(bits, &open, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return true;
        poll(NULL, 0, 1);
    }
    return false;
#else
    const PY_TIMEOUT_T longest_us = 100000;
    return PyThread_acquire_lock_timed(_PyRuntime.interpreters.mutex, longest_us, 0) ==
           PY_LOCK_ACQUIRED;
#endif
}

static void unlock_list(void) {
#if PY_VERSION_HEX >= 0x030D0000
    PyMutex_Unlock(&_PyRuntime.interpreters.mutex);
#else
    PyThread_release_lock(_PyRuntime.interpreters.mutex);
#endif
}

static bool shares_gil(const PyInterpreterState *state, const PyInterpreterState *other) {
#ifdef Py_GIL_DISABLED
    (void)state;
    (void)other;
    return false;
#elif PY_VERSION_HEX >= 0x030C0000
    return state == other || (sb_layout_is_known() && state->ceval.gil == other->ceval.gil);
#else
    (void)state;
    (void)other;
    return true;
#endif
}

// Under the lock of the list. Who ends an interpreter says so first, with its GIL held, gives the
// GIL up now and then, and does not look again at what is in there.
static bool can_visit(const PyInterpreterState *state, const PyInterpreterState *own) {
    if (state->finalizing != 0 || SB_MODULES(state) == NULL) return false;
#if SB_GUARDS
    (void)own;
    return true;
#else
    if (!shares_gil(state, own)) return false;
#if PY_VERSION_HEX >= 0x030C0000
    // They would be told of our callback, and run code of the program.
    if (state->audit_hooks != NULL || _PyRuntime.audit_hooks.head != NULL) return false;
#endif
    return true;
#endif
}

size_t sb_list_others(int64_t *ids, size_t room, size_t *closed) {
    const PyInterpreterState *own = PyInterpreterState_Get();
    size_t count = 0;
    if (!sb_layout_is_known()) {
        // The main one is the last of the list.
        const PyInterpreterState *main = PyInterpreterState_Main();
        *closed = own != main || PyInterpreterState_Head() != main;
        return 0;
    }
    *closed = 1;
    if (!lock_list()) return 0;
    *closed = 0;
    for (PyInterpreterState *state = PyInterpreterState_Head(); state != NULL;
         state = PyInterpreterState_Next(state)) {
        if (state == own) continue;
        if (count < room && can_visit(state, own))
            ids[count++] = state->id;
        else
            ++*closed;
    }
    unlock_list();
    return count;
}

int sb_is_there(int64_t id) {
    if (!lock_list()) return 1;
    PyInterpreterState *state = PyInterpreterState_Head();
    while (state != NULL && state->id != id) state = PyInterpreterState_Next(state);
    unlock_list();
    return state != NULL;
}

#if SB_GUARDS

struct visit {
    PyInterpreterGuard *guard;
    PyThreadStateToken *token;
};

void *sb_visit(int64_t id) {
    struct visit *visit = malloc(sizeof *visit);
    if (visit == NULL) return NULL;
    struct PyInterpreterView view = {id};
    visit->guard = PyInterpreterGuard_FromView(&view);
    if (visit->guard != NULL) {
        visit->token = PyThreadState_Ensure(visit->guard);
        if (visit->token != NULL) return visit;
        PyInterpreterGuard_Close(visit->guard);
    }
    PyErr_Clear();
    free(visit);
    return NULL;
}

void sb_leave(void *visit) {
    struct visit *ended = visit;
    PyThreadState_Release(ended->token);
    PyInterpreterGuard_Close(ended->guard);
    free(ended);
}

int sb_keeps_gil(void) {
    return 0;
}

#else

// The thread goes there as it is. A thread state in there would meet Py_EndInterpreter(), which
// aborts ("not the last thread"), or _xxsubinterpreters, which runs code with the first that it
// finds; and PyThreadState_Swap() gives the GIL up from 3.12 on.
static PyInterpreterState *g_home;
static int g_collected;

static void move(PyThreadState *thread, PyInterpreterState *state) {
    thread->interp = state;
#if PY_VERSION_HEX >= 0x030D0000
    // What a thread takes over with the GIL (update_eval_breaker_for_thread() in ceval_gil.c): the
    // number of the interpreter's latest instrumentation, for which bytecode waits.
    const uintptr_t mask = _PY_EVAL_EVENTS_MASK;
    const uintptr_t version = state->ceval.instrumentation_version & ~mask;
    uintptr_t old = __atomic_load_n(&thread->eval_breaker, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&thread->eval_breaker, &old,
                                        (old & mask) | version, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED)) {
    }
#endif
}

void *sb_visit(int64_t id) {
    PyThreadState *thread = PyThreadState_Get();
    PyInterpreterState *found = NULL;
    if (!lock_list()) return NULL;
    for (PyInterpreterState *state = PyInterpreterState_Head(); state != NULL;
         state = PyInterpreterState_Next(state)) {
        if (state->id == id && state != thread->interp && can_visit(state, thread->interp))
            found = state;
    }
    unlock_list();
    if (found == NULL) return NULL;
    g_home = thread->interp;
    move(thread, found);
    // Before 3.12 it may begin anywhere, and runs Python code.
    g_collected = PyGC_Disable();
    return found;
}

void sb_leave(void *visit) {
    (void)visit;
    if (g_collected) PyGC_Enable();
    move(PyThreadState_Get(), g_home);
}

int sb_keeps_gil(void) {
    return 1;
}

#endif

int sb_runs_beside_others(void) {
    return !shares_gil(PyInterpreterState_Get(), PyInterpreterState_Main());
}

void sb_visit_frozen(int (*visit)(PyObject *, void *), void *argument) {
#if PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED)
    if (!sb_layout_is_known()) return;
    PyGC_Head *head = &PyInterpreterState_Get()->gc.permanent_generation.head;
    for (PyGC_Head *object = _PyGCHead_NEXT(head); object != head; object = _PyGCHead_NEXT(object))
        if (visit((PyObject *)(object + 1), argument) == 0) return;
#else
    (void)visit;
    (void)argument;
#endif
}

// By a call that is made anyway (user/inject/needed_calls.cpp): a filter may forbid others.
static void pause_ns(int64_t ns) {
    const struct timespec pause = {ns / 1000000000, ns % 1000000000};
    ppoll(NULL, 0, &pause, NULL);
}

#ifdef Py_GIL_DISABLED

void sb_begin_gil(void) {}

void sb_end_gil(void) {}

PyThreadState *sb_give_gil(void) {
    return PyEval_SaveThread();
}

void sb_take_gil(PyThreadState *thread, int is_main) {
    (void)is_main;
    PyEval_RestoreThread(thread);
}

void sb_leave_gil(const PyThreadState *thread, int is_main, int64_t ns) {
    (void)thread;
    (void)is_main;
    pause_ns(ns);
}

void sb_before_fork(void) {}
void sb_after_fork_in_parent(void) {}
void sb_after_fork_in_child(void) {}

#else

#if PY_VERSION_HEX >= 0x030D0000
// What cpython/layout.cpp makes of the debug offsets, where the interval is not named.
_Static_assert(offsetof(struct _gil_runtime_state, last_holder) ==
                   offsetof(struct _gil_runtime_state, interval) + 8,
               "the interval lies before the holder");
#endif

enum { kLookingUs = 5000, kBetweenLooksUs = 250, kAskingMs = 100, kLeavingMs = 100 };

// The main interpreter's GIL, which is never freed; null: it is not known.
static struct _gil_runtime_state *g_gil;
static bool g_has_asker;
static pthread_t g_asker;

// Of what follows. Nobody waits for it with the GIL held for longer than it takes to change that.
static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long g_before_us; // what the interval was; 0: nobody asks
static int64_t g_until_ns;        // until then, by CLOCK_MONOTONIC
static bool g_is_watched;
static unsigned g_forks;          // under way, whose children would keep the interval
static unsigned long g_paused_us; // g_before_us of an asking that goes on after them

static bool is_asker(void) {
    return g_has_asker && pthread_equal(g_asker, pthread_self());
}

static bool is_taken(const struct _gil_runtime_state *gil) {
    return __atomic_load_n((const int *)&gil->locked, __ATOMIC_RELAXED) != 0;
}

// Whether a thread waits in take_gil(), woken or not: glibc counts those in each condition variable
// in steps of eight, from 2.25 on (__wrefs in nptl/pthread_cond_common.c).
static bool is_waited_for(const struct _gil_runtime_state *gil) {
    return __atomic_load_n(&gil->cond.__data.__wrefs, __ATOMIC_RELAXED) >= 8;
}

// Whether nobody has had it since that thread has given it up.
static bool is_left_by(const struct _gil_runtime_state *gil, const PyThreadState *thread) {
    _Static_assert(sizeof gil->last_holder == sizeof(uintptr_t), "a pointer, atomic in its way");
    return !is_taken(gil) && __atomic_load_n((const uintptr_t *)&gil->last_holder,
                                             __ATOMIC_RELAXED) == (uintptr_t)thread;
}

// If it is `from_us` still: the program may have set another one meanwhile.
static void change_interval(unsigned long from_us, unsigned long to_us) {
    __atomic_compare_exchange_n(&g_gil->interval, &from_us, to_us, 0, __ATOMIC_SEQ_CST,
                                __ATOMIC_RELAXED);
}

// Under the lock.
static void put_interval_back(void) {
    if (g_before_us != 0) change_interval(SB_ASKING_US, g_before_us);
    g_before_us = 0;
}

static void ask_no_more(void) {
    pthread_mutex_lock(&g_lock);
    g_paused_us = 0;
    put_interval_back();
    pthread_mutex_unlock(&g_lock);
}

static int64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

// A thread of its own: has the asking end where the asker can't, since it waits.
static void *watch(void *unused) {
    (void)unused;
    pthread_mutex_lock(&g_lock);
    int64_t left_ns;
    while ((left_ns = g_until_ns - clock_ns()) > 0) {
        pthread_mutex_unlock(&g_lock);
        pause_ns(left_ns);
        pthread_mutex_lock(&g_lock);
    }
    put_interval_back();
    g_is_watched = false;
    pthread_mutex_unlock(&g_lock);
    return NULL;
}

static bool start_watch(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes) != 0) return false;
    const bool is_started =
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED) == 0 &&
        pthread_create(&thread, &attributes, watch, NULL) == 0;
    pthread_attr_destroy(&attributes);
    return is_started;
}

// Under the lock.
static void go_on_asking(void) {
    if (g_paused_us == 0 || g_forks > 0 || clock_ns() >= g_until_ns) return;
    g_before_us = g_paused_us;
    g_paused_us = 0;
    change_interval(g_before_us, SB_ASKING_US);
}

static void begin_to_ask(unsigned long interval_us) {
    // In an interval as short nobody needs to ask, and perhaps the thread of another core does.
    if (interval_us <= SB_ASKING_US) return;
    pthread_mutex_lock(&g_lock);
    g_until_ns = clock_ns() + kAskingMs * INT64_C(1000000);
    const bool was_watched = g_is_watched;
    g_is_watched = true;
    pthread_mutex_unlock(&g_lock);
    const bool is_watched = was_watched || start_watch(); // which may take its time
    pthread_mutex_lock(&g_lock);
    g_is_watched &= is_watched;
    if (is_watched) g_paused_us = interval_us;
    go_on_asking();
    pthread_mutex_unlock(&g_lock);
}

// That of the running interpreter, if it is the main one and it is known where it lies.
static struct _gil_runtime_state *find_gil(void) {
    PyObject *get = PySys_GetObject("getswitchinterval");
    if (PyInterpreterState_Get() != PyInterpreterState_Main() || !sb_layout_is_known() ||
        get == NULL || !PyCFunction_Check(get))
        return NULL;
#if PY_VERSION_HEX >= 0x030C0000
    struct _gil_runtime_state *gil = PyInterpreterState_Get()->ceval.gil;
#else
    struct _gil_runtime_state *gil = &_PyRuntime.ceval.gil;
#endif
    PyObject *told = PyObject_CallNoArgs(get);
    const double us = told != NULL ? PyFloat_AsDouble(told) * 1e6 : -1;
    Py_XDECREF(told);
    PyErr_Clear();
    const double differs = us - (double)gil->interval;
    return is_taken(gil) && differs > -0.5 && differs < 0.5 ? gil : NULL;
}

void sb_begin_gil(void) {
    if (g_gil == NULL) g_gil = find_gil();
    if (g_has_asker) return;
    g_has_asker = true;
    g_asker = pthread_self();
}

void sb_end_gil(void) {
    if (!is_asker()) return;
    ask_no_more();
    g_has_asker = false;
}

PyThreadState *sb_give_gil(void) {
    if (is_asker()) ask_no_more();
    return PyEval_SaveThread();
}

void sb_take_gil(PyThreadState *thread, int is_main) {
    const struct _gil_runtime_state *gil = g_gil;
    if (is_main && gil != NULL && is_asker()) {
        const unsigned long interval_us = __atomic_load_n(&gil->interval, __ATOMIC_RELAXED);
        const int64_t longest_us = interval_us < kLookingUs ? (int64_t)interval_us : kLookingUs;
        const int64_t end_ns = clock_ns() + longest_us * 1000;
        const bool was_taken = is_taken(gil);
        while (is_taken(gil) && clock_ns() < end_ns) pause_ns(kBetweenLooksUs * 1000);
        if (was_taken) begin_to_ask(interval_us); // it may not be free any more
    }
    PyEval_RestoreThread(thread);
}

void sb_leave_gil(const PyThreadState *thread, int is_main, int64_t ns) {
    const struct _gil_runtime_state *gil = is_main ? g_gil : NULL;
    const int64_t end_ns = clock_ns() + kLeavingMs * INT64_C(1000000);
    while (gil != NULL && is_left_by(gil, thread) && is_waited_for(gil) && clock_ns() < end_ns)
        pause_ns(kBetweenLooksUs * 1000);
    pause_ns(ns);
}

void sb_before_fork(void) {
    pthread_mutex_lock(&g_lock);
    ++g_forks;
    if (g_before_us != 0) g_paused_us = g_before_us;
    put_interval_back();
    pthread_mutex_unlock(&g_lock);
}

void sb_after_fork_in_parent(void) {
    pthread_mutex_lock(&g_lock);
    --g_forks;
    go_on_asking();
    pthread_mutex_unlock(&g_lock);
}

void sb_after_fork_in_child(void) {
    g_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; // one of those threads may have had it
    g_forks = 0;
    g_paused_us = 0;
    g_has_asker = false;
    g_is_watched = false;
}

#endif
