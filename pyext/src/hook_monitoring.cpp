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
    auto* code = reinterpret_cast<PyCodeObject*>(args[0]);
    Decision decision = static_cast<Decision>(
        reinterpret_cast<uintptr_t>(code_extra(code, interpreter.decision_index)));
    if (!is_current(decision)) [[unlikely]] {
        // Without a session the hook is on its way out.
        if (g_live.running.load(std::memory_order_acquire) == 0) Py_RETURN_NONE;
        decision = decide(interpreter, code, PyEval_GetGlobals());
    }
    const uint32_t place = place_of(decision);
    if (place == 0) return Py_NewRef(interpreter.disable);
    if (!on_match(interpreter, place - 1)) [[unlikely]] {
        // The session ended with nobody left to take the hook out.
        const Ref keep = Ref::borrow(self);
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

bool register_events(Interpreter& interpreter, long event) {
    PyObject* monitoring = interpreter.monitoring;
    const Ref previous(PyObject_CallMethod(monitoring, "register_callback", "ilO",
                                           interpreter.tool_id, event, interpreter.callback));
    if (!previous) return false;
    const Ref set(PyObject_CallMethod(monitoring, "set_events", "il", interpreter.tool_id, event));
    if (!set) return false;
    // Locations that an earlier user of this tool id switched off count as switched off still.
    const Ref restarted(PyObject_CallMethod(monitoring, "restart_events", nullptr));
    return static_cast<bool>(restarted);
}

} // namespace

bool look_anew(Interpreter& interpreter) {
    if (!interpreter.hooked) return true;
    const Ref restarted(PyObject_CallMethod(interpreter.monitoring, "restart_events", nullptr));
    return static_cast<bool>(restarted);
}

bool hook(Interpreter& interpreter) {
    if (interpreter.hooked) return look_anew(interpreter);
    PyObject* found = PySys_GetObject("monitoring");
    if (found == nullptr) {
        PyErr_SetString(PyExc_RuntimeError, "this interpreter has no sys.monitoring");
        return false;
    }
    Ref monitoring = Ref::borrow(found);
    Ref disable(PyObject_GetAttrString(monitoring.get(), "DISABLE"));
    Ref callback = make_callback(interpreter);
    const long event = start_event(monitoring.get());
    if (!disable || !callback || event < 0) return false;
    const int tool_id = take_tool_id(monitoring.get());
    if (tool_id < 0) return false;
    interpreter.tool_id = tool_id;
    interpreter.monitoring = monitoring.release();
    interpreter.disable = disable.release();
    interpreter.callback = callback.release();
    interpreter.hooked = true;
    if (!register_events(interpreter, event)) {
        unhook(interpreter);
        return false;
    }
    return true;
}

void unhook(Interpreter& interpreter) {
    if (!interpreter.hooked) return;
    const ErrorAside aside;
    interpreter.hooked = false;
    const Ref keep = Ref::borrow(interpreter.monitoring);
    PyObject* monitoring = keep.get();
    const Ref none = Ref::borrow(Py_None);
    const long event = start_event(monitoring);
    Ref result(PyObject_CallMethod(monitoring, "set_events", "ii", interpreter.tool_id, 0));
    PyErr_Clear();
    result = Ref(PyObject_CallMethod(monitoring, "register_callback", "ilO", interpreter.tool_id,
                                     event, none.get()));
    PyErr_Clear();
    result = Ref(PyObject_CallMethod(monitoring, "free_tool_id", "i", interpreter.tool_id));
    PyErr_Clear();
    interpreter.tool_id = -1;
    abandon(interpreter);
}

void abandon(Interpreter& interpreter) {
    Py_CLEAR(interpreter.callback);
    Py_CLEAR(interpreter.disable);
    Py_CLEAR(interpreter.monitoring);
}

} // namespace speedbump::python

#endif
