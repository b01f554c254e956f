// SPDX-License-Identifier: MIT
#include "session.h"

#if SB_MONITORING

#include <structmember.h>

#include "python_util.h"

// The hook of 3.12 and later: global PY_START events go to a C callable, which answers DISABLE for
// functions that no line matches, so that they cost nothing from their second call on.
namespace speedbump::python {
namespace {

struct Callback {
    PyObject_HEAD vectorcallfunc vectorcall;
    Interpreter* interpreter;
};

PyObject* on_start(PyObject* self, PyObject* const* args, size_t, PyObject*) {
    Interpreter& interpreter = *reinterpret_cast<Callback*>(self)->interpreter;
    const InHook in(interpreter.runs_beside);
    if (g_live.running.load() == 0) [[unlikely]] { // the hook is on its way out, or was forked
        unhook(interpreter);
        Py_RETURN_NONE;
    }
    auto* code = reinterpret_cast<PyCodeObject*>(args[0]);
    Decision decision = static_cast<Decision>(
        reinterpret_cast<uintptr_t>(code_extra(code, interpreter.decision_index)));
    if (!is_current(decision)) [[unlikely]]
        decision = decide(interpreter, code, PyEval_GetGlobals());
    if (place_of(decision) == 0) return Py_NewRef(interpreter.disable);
    if (!on_match(interpreter, decision)) [[unlikely]] {
        // The session ended with nobody left to take the hook out.
        unhook(interpreter);
    }
    Py_RETURN_NONE;
}

void release_callback(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

PyMemberDef kCallbackMembers[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Callback, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot kCallbackSlots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(release_callback)},
                                {Py_tp_members, kCallbackMembers},
                                {0, nullptr}};

PyType_Spec kCallbackSpec = {
    "speed_bump._core.StartCallback", sizeof(Callback), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    kCallbackSlots};

Ref make_callback(Interpreter& interpreter) {
    const Ref type(PyType_FromSpec(&kCallbackSpec));
    if (!type) return Ref();
    auto* type_object = reinterpret_cast<PyTypeObject*>(type.get());
    PyObject* object = type_object->tp_alloc(type_object, 0);
    if (object == nullptr) return Ref();
    auto* callback = reinterpret_cast<Callback*>(object);
    callback->vectorcall = on_start;
    callback->interpreter = &interpreter;
    return Ref(object);
}

// Takes a tool id: one that no kind of tool has by convention, before those that one has.
int take_tool_id(PyObject* monitoring) {
    for (const int id : {4, 3, 2, 5, 1, 0}) {
        const Ref taken(PyObject_CallMethod(monitoring, "use_tool_id", "is", id, "speed_bump"));
        if (taken) return id;
        if (!PyErr_ExceptionMatches(PyExc_ValueError)) return -1;
        PyErr_Clear();
    }
    PyErr_SetString(PyExc_RuntimeError,
                    "all six tool ids of sys.monitoring are taken by other tools");
    return -1;
}

// The id of the PY_START event, or -1 with an error set.
long start_event(PyObject* monitoring) {
    const Ref events(PyObject_GetAttrString(monitoring, "events"));
    if (!events) return -1;
    const Ref event(PyObject_GetAttrString(events.get(), "PY_START"));
    return event ? PyLong_AsLong(event.get()) : -1;
}

bool register_events(Interpreter& interpreter, int tool_id, long event) {
    PyObject* monitoring = interpreter.monitoring;
    const Ref previous(PyObject_CallMethod(monitoring, "register_callback", "ilO", tool_id, event,
                                           interpreter.callback));
    if (!previous) return false;
    const Ref set(PyObject_CallMethod(monitoring, "set_events", "il", tool_id, event));
    if (!set) return false;
    // Locations that an earlier user of this tool id switched off count as switched off still.
    const Ref restarted(PyObject_CallMethod(monitoring, "restart_events", nullptr));
    return static_cast<bool>(restarted);
}

// Gives a tool id back; a Python error that is set stays set.
void free_tool_id(PyObject* monitoring, int tool_id) {
    const ErrorAside aside;
    const Ref none = Ref::borrow(Py_None);
    const long event = start_event(monitoring);
    Ref result(PyObject_CallMethod(monitoring, "set_events", "ii", tool_id, 0));
    PyErr_Clear();
    result = Ref(
        PyObject_CallMethod(monitoring, "register_callback", "ilO", tool_id, event, none.get()));
    PyErr_Clear();
    result = Ref(PyObject_CallMethod(monitoring, "free_tool_id", "i", tool_id));
    PyErr_Clear();
}

// What the hook of an interpreter needs, once: threads may be in the callback as long as it lives.
bool make_lasting(Interpreter& interpreter) {
    if (interpreter.callback != nullptr) return true;
    PyObject* found = PySys_GetObject("monitoring");
    if (found == nullptr) {
        PyErr_SetString(PyExc_RuntimeError, "this interpreter has no sys.monitoring");
        return false;
    }
    Ref monitoring = Ref::borrow(found);
    Ref disable(PyObject_GetAttrString(monitoring.get(), "DISABLE"));
    Ref callback = make_callback(interpreter);
    if (!disable || !callback) return false;
    interpreter.monitoring = monitoring.release();
    interpreter.disable = disable.release();
    interpreter.callback = callback.release();
    return true;
}

} // namespace

bool look_anew(Interpreter& interpreter) {
    if (!interpreter.is_hooked()) return true;
    const Ref restarted(PyObject_CallMethod(interpreter.monitoring, "restart_events", nullptr));
    return static_cast<bool>(restarted);
}

// Each tool has its own place.
bool is_pushed_out() {
    return false;
}

void put_back(Interpreter&) {}

bool hook(Interpreter& interpreter) {
    if (interpreter.is_hooked()) return look_anew(interpreter);
    if (!make_lasting(interpreter)) return false;
    PyObject* monitoring = interpreter.monitoring;
    const long event = start_event(monitoring);
    const int tool_id = event < 0 ? -1 : take_tool_id(monitoring);
    if (tool_id < 0) return false;
    interpreter.tool_id = tool_id; // first: a child that is forked just now is to find it
    if (register_events(interpreter, tool_id, event)) return true;
    unhook(interpreter);
    return false;
}

void unhook(Interpreter& interpreter) {
    const int tool_id = interpreter.tool_id.exchange(-1);
    if (tool_id < 0) return;
    free_tool_id(interpreter.monitoring, tool_id);
}

void abandon(Interpreter& interpreter) {
    Py_CLEAR(interpreter.callback);
    Py_CLEAR(interpreter.disable);
    Py_CLEAR(interpreter.monitoring);
}

} // namespace speedbump::python

#endif
