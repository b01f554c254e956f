// SPDX-License-Identifier: MIT
#include "session.h"

#if !SB_MONITORING

#include <pthread.h>

#include <atomic>

#include "python_util.h"

// The hook of 3.10 and 3.11: a frame evaluation function (PEP 523). All interpreters of these
// versions share one GIL, which guards everything here.
namespace speedbump::python {
namespace {

using Evaluate = _PyFrameEvalFunction;

// What was there before, and is called by the hook.
Evaluate g_next = _PyEval_EvalFrameDefault;
// The code extra index, the same in every interpreter.
Py_ssize_t g_decision_index = -1;
std::atomic<int> g_hooked{0}; // interpreters
// The interpreter that was looked up last.
Interpreter* g_recent = nullptr;

PyObject* evaluate(PyThreadState* thread, Frame* frame, int throwflag);

void set_evaluate(PyInterpreterState* state, Evaluate function) {
    _PyInterpreterState_SetEvalFrameFunc(state, function);
}

bool is_in_front(PyInterpreterState* state, Evaluate function) {
    return _PyInterpreterState_GetEvalFrameFunc(state) == function;
}

#if SB_HOOK_RECURSES
// 3.11 runs Python calls without C recursion, except under a hook. When a thread has used half of
// its stack the hook is taken out until that call returns, so that a deep recursion that worked
// goes on working; what is called meanwhile, in all threads, goes unseen. Where another hook is in
// front, and calls ours, there is recursion with or without ours.
PyThreadState* g_guarded_thread = nullptr;
uintptr_t g_guard_low = 0;  // the guarded thread's stack: its end,
uintptr_t g_guard_high = 0; // the half of it, and where it begins
uintptr_t g_guard_top = 0;
std::atomic<int> g_suspended{0};

struct StackBounds {
    uintptr_t low = 0;
    uintptr_t half = 0;
    uintptr_t top = UINTPTR_MAX;
};
thread_local StackBounds t_stack;

void guard_thread(PyThreadState* thread) {
    if (t_stack.half == 0) {
        t_stack.half = 1; // nothing is below it, should the bounds be unknown
        pthread_attr_t attributes;
        if (::pthread_getattr_np(::pthread_self(), &attributes) == 0) {
            void* low = nullptr;
            size_t size = 0;
            if (::pthread_attr_getstack(&attributes, &low, &size) == 0) {
                t_stack.low = reinterpret_cast<uintptr_t>(low);
                t_stack.half = t_stack.low + size / 2;
                t_stack.top = t_stack.low + size;
            }
            ::pthread_attr_destroy(&attributes);
        }
    }
    g_guarded_thread = thread;
    g_guard_low = t_stack.low;
    g_guard_high = t_stack.half;
    g_guard_top = t_stack.top;
}

bool is_deep(PyThreadState* thread) {
    const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    // A thread that has ended may have left its state's place to one with another stack.
    if (thread != g_guarded_thread || here < g_guard_low || here >= g_guard_top) [[unlikely]]
        guard_thread(thread);
    return here < g_guard_high && here >= g_guard_low;
}

PyObject* evaluate_unhooked(PyThreadState* thread, Frame* frame, int throwflag) {
    PyInterpreterState* state = thread->interp;
    if (!is_in_front(state, evaluate)) return g_next(thread, frame, throwflag);
    ++g_suspended;
    set_evaluate(state, g_next);
    PyObject* result = g_next(thread, frame, throwflag);
    --g_suspended;
    if (g_suspended == 0 && g_live.running.load(std::memory_order_relaxed) != 0 &&
        is_in_front(state, g_next)) {
        set_evaluate(state, evaluate);
    }
    return result;
}
#endif

Interpreter* interpreter_of(PyThreadState* thread) {
    if (g_recent == nullptr || g_recent->state != thread->interp) [[unlikely]] {
        g_recent = this_interpreter();
        if (g_recent == nullptr) PyErr_Clear();
    }
    return g_recent;
}

// Takes the function out if it is the one in front. One that came later and calls ours keeps it;
// ours then only passes calls on.
void step_back(Interpreter& interpreter) {
    if (is_in_front(interpreter.state, evaluate))
        set_evaluate(interpreter.state, g_next);
    else if (!is_in_front(interpreter.state, _PyEval_EvalFrameDefault))
        return;
    interpreter.chained = false;
}

// Who was there before us is in front of us again, as PyTorch's compiler is where another thread
// came to it before the first had left, and calls us: it must not be called by us, too.
[[gnu::noinline]] void leave_circle(PyThreadState* thread) {
#if SB_HOOK_RECURSES
    if (g_suspended != 0) return; // it is in front in our place
#endif
    if (is_in_front(thread->interp, g_next)) g_next = _PyEval_EvalFrameDefault;
}

// Deals with a call that is not known to match nothing.
[[gnu::noinline]] void meet(PyThreadState* thread, Frame* frame, int throwflag, Decision decision) {
    const ErrorAside aside;
    Interpreter* interpreter = interpreter_of(thread);
    if (interpreter == nullptr) return;
    if (g_live.running.load(std::memory_order_relaxed) == 0) {
        step_back(*interpreter);
        return;
    }
    if (!is_current(decision)) decision = decide(*interpreter, frame->f_code, frame->f_globals);
    if (place_of(decision) == 0 || !is_start(frame, throwflag)) return;
    if (!on_match(*interpreter, decision)) {
        // The session ended with nobody left to take the hook out.
        unhook(*interpreter);
    }
}

PyObject* evaluate(PyThreadState* thread, Frame* frame, int throwflag) {
    const auto decision = static_cast<Decision>(
        reinterpret_cast<uintptr_t>(code_extra(frame->f_code, g_decision_index)));
    if (decision != g_live.no_match.load(std::memory_order_relaxed)) [[unlikely]] {
        meet(thread, frame, throwflag, decision);
    }
    if (g_next != _PyEval_EvalFrameDefault) [[unlikely]]
        leave_circle(thread);
#if SB_HOOK_RECURSES
    if (is_deep(thread)) [[unlikely]]
        return evaluate_unhooked(thread, frame, throwflag);
#endif
    return g_next(thread, frame, throwflag);
}

} // namespace

// PyTorch's compiler puts its function in for as long as compiled code runs, and then puts back
// what there was before: if we come meanwhile, nothing. When it is next put in, it calls ours.
bool is_pushed_out() {
#if SB_HOOK_RECURSES
    if (g_suspended != 0) return false;
#endif
    return g_hooked == 1 && g_live.running.load(std::memory_order_relaxed) != 0 &&
           is_in_front(PyInterpreterState_Main(), _PyEval_EvalFrameDefault);
}

void put_back(Interpreter& interpreter) {
    if (!interpreter.is_hooked() || interpreter.state != PyInterpreterState_Main() ||
        !is_pushed_out())
        return;
    g_next = _PyEval_EvalFrameDefault;
    set_evaluate(interpreter.state, evaluate);
}

// It sees every call.
bool look_anew(Interpreter&) {
    return true;
}

bool hook(Interpreter& interpreter) {
    if (g_decision_index < 0) g_decision_index = interpreter.decision_index;
    while (interpreter.decision_index >= 0 && interpreter.decision_index < g_decision_index) {
        interpreter.decision_index = request_code_extra_index(nullptr);
    }
    if (interpreter.decision_index != g_decision_index) {
        PyErr_SetString(PyExc_RuntimeError,
                        "other extensions hold the code extra index in this interpreter");
        return false;
    }
    const Evaluate present = _PyInterpreterState_GetEvalFrameFunc(interpreter.state);
    // Whoever came after us calls us still.
    const bool reached = interpreter.chained && present != _PyEval_EvalFrameDefault;
    if (present != evaluate && !reached) {
        if (g_hooked != 0 && present != g_next) {
            PyErr_SetString(PyExc_RuntimeError,
                            "this interpreter has another frame evaluation hook than the main one");
            return false;
        }
        g_next = present;
        set_evaluate(interpreter.state, evaluate);
    }
    interpreter.chained = true;
    if (interpreter.tool_id.exchange(0) < 0) ++g_hooked;
    return true;
}

void unhook(Interpreter& interpreter) {
    if (interpreter.tool_id.exchange(-1) < 0) return;
    --g_hooked;
    step_back(interpreter);
}

void abandon(Interpreter& interpreter) {
    if (interpreter.tool_id.exchange(-1) >= 0) --g_hooked;
    if (g_recent == &interpreter) g_recent = nullptr;
}

} // namespace speedbump::python

#endif
