// SPDX-License-Identifier: MIT
#include "qualname.h"

#include <vector>

#include "python_util.h"

namespace speedbump::python {

#if SB_CODE_HAS_QUALNAME

Py_ssize_t request_name_index() {
    return -1;
}

std::string qualified_name(Interpreter&, PyCodeObject* code) {
    return text_of(code->co_qualname);
}

void note_nested_names(Interpreter&, PyCodeObject*) {}
void note_function_name(Interpreter&, PyObject*) {}

#else
namespace {

void release_name(void* name) {
    Py_XDECREF(static_cast<PyObject*>(name));
}

void set_name(Interpreter& interpreter, PyCodeObject* code, PyObject* name) {
    if (code_extra(code, interpreter.name_index) != nullptr) return;
    Py_INCREF(name);
    if (!set_code_extra(code, interpreter.name_index, name)) {
        Py_DECREF(name);
        PyErr_Clear();
    }
}

// Names all functions that exist, in one walk: one for each would hold the GIL each time.
void name_all(Interpreter& interpreter) {
    std::vector<Ref> functions;
    const bool visited = visit_objects(
        [](PyObject* object, void* into) {
            if (PyFunction_Check(object))
                static_cast<std::vector<Ref>*>(into)->push_back(Ref::borrow(object));
            return 1;
        },
        &functions);
    if (!visited) return;
    for (const Ref& function : functions)
        note_nested_names(interpreter,
                          reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function.get())));
    for (const Ref& function : functions) note_function_name(interpreter, function.get());
}

} // namespace

Py_ssize_t request_name_index() {
    return request_code_extra_index(release_name);
}

std::string qualified_name(Interpreter& interpreter, PyCodeObject* code) {
    if (code_extra(code, interpreter.name_index) == nullptr) {
        // Module-level code has no function and needs no search.
        if (code->co_flags & CO_OPTIMIZED) name_all(interpreter);
        PyErr_Clear();
        set_name(interpreter, code, code->co_name); // a name that is there stays
    }
    return text_of(static_cast<PyObject*>(code_extra(code, interpreter.name_index)));
}

void note_nested_names(Interpreter& interpreter, PyCodeObject* code) {
    PyObject* constants = code->co_consts;
    bool has_code = false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(constants); ++i) {
        has_code = has_code || PyCode_Check(PyTuple_GET_ITEM(constants, i));
    }
    if (!has_code) return;
    const auto* bytes = reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(code->co_code));
    const Py_ssize_t size = PyBytes_GET_SIZE(code->co_code);
    // LOAD_CONST <code>, LOAD_CONST <name>, MAKE_FUNCTION, each with its EXTENDED_ARGs.
    PyObject* last = nullptr;
    PyObject* before = nullptr;
    int extended = 0;
    for (Py_ssize_t i = 0; i + 1 < size; i += 2) {
        const int opcode = bytes[i];
        const int argument = extended << 8 | bytes[i + 1];
        extended = opcode == EXTENDED_ARG ? argument : 0;
        if (opcode == EXTENDED_ARG) continue;
        if (opcode == LOAD_CONST && argument < PyTuple_GET_SIZE(constants)) {
            before = last;
            last = PyTuple_GET_ITEM(constants, argument);
            continue;
        }
        if (opcode == MAKE_FUNCTION && before != nullptr && PyCode_Check(before) &&
            PyUnicode_Check(last)) {
            set_name(interpreter, reinterpret_cast<PyCodeObject*>(before), last);
        }
        before = last = nullptr;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(constants); ++i) {
        PyObject* constant = PyTuple_GET_ITEM(constants, i);
        if (PyCode_Check(constant)) {
            note_nested_names(interpreter, reinterpret_cast<PyCodeObject*>(constant));
        }
    }
}

void note_function_name(Interpreter& interpreter, PyObject* function) {
    set_name(interpreter, reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function)),
             reinterpret_cast<PyFunctionObject*>(function)->func_qualname);
}

#endif

} // namespace speedbump::python
