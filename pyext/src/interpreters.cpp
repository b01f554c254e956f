// SPDX-License-Identifier: MIT
#include "interpreters.h"

#include "gil.h"
#include "python_util.h"

namespace speedbump::python {
namespace {

// What `module:a.b` names, looked up in dicts alone so that no code of the program runs; null when
// it is not there.
PyObject* find_object(const targets::TargetLine& line) {
    PyObject* modules = PyImport_GetModuleDict();
    PyObject* module = PyDict_GetItemString(modules, line.container.text.c_str());
    if (module == nullptr || !PyModule_Check(module)) return nullptr;
    PyObject* found = nullptr;
    PyObject* dict = PyModule_GetDict(module);
    size_t begin = 0;
    while (begin <= line.name.text.size()) {
        const size_t dot = line.name.text.find('.', begin);
        const std::string part = line.name.text.substr(
            begin, dot == std::string::npos ? std::string::npos : dot - begin);
        const Ref name(
            PyUnicode_FromStringAndSize(part.data(), static_cast<Py_ssize_t>(part.size())));
        if (!name) return nullptr;
        if (dict != nullptr) {
            found = PyDict_GetItemWithError(dict, name.get());
        } else {
            found = _PyType_Lookup(reinterpret_cast<PyTypeObject*>(found), name.get());
        }
        if (found == nullptr || dot == std::string::npos) return found;
        if (!PyType_Check(found)) return nullptr;
        dict = nullptr;
        begin = dot + 1;
    }
    return found;
}

} // namespace

void for_each_interpreter(const std::function<void()>& work) {
    PyThreadState* own = PyThreadState_Get();
    std::vector<PyInterpreterState*> others;
    for (PyInterpreterState* state = PyInterpreterState_Head(); state != nullptr;
         state = PyInterpreterState_Next(state)) {
        if (state != PyInterpreterState_Get()) others.push_back(state);
    }
    work();
    for (PyInterpreterState* state : others) {
        PyThreadState* visitor = PyThreadState_New(state);
        if (visitor == nullptr) continue;
        PyEval_SaveThread();
        take_gil(visitor);
        work();
        PyErr_Clear();
        PyThreadState_Clear(visitor);
        PyThreadState_DeleteCurrent();
        take_gil(own);
    }
}

void unhook_everywhere() {
    Interpreter* here = this_interpreter();
    if (here == nullptr) {
        PyErr_Clear();
        return;
    }
    unhook(*here);
    if (!any_hooked()) return;
    for_each_interpreter([] {
        if (Interpreter* interpreter = this_interpreter()) unhook(*interpreter);
    });
}

std::vector<std::string> not_interpreted(const targets::TargetsFile& file) {
    const ErrorAside aside;
    std::vector<std::string> sentences;
    for (const targets::TargetLine& line : file.lines) {
        if (line.runtime != targets::Runtime::kPython || line.exclude || line.container.is_glob ||
            line.name.is_glob) {
            continue;
        }
        PyObject* object = find_object(line);
        PyErr_Clear();
        if (object == nullptr) continue;
        const char* what = nullptr;
        if (PyCFunction_Check(object) || Py_IS_TYPE(object, &PyMethodDescr_Type) ||
            Py_IS_TYPE(object, &PyWrapperDescr_Type)) {
            what = "is a builtin: it is not interpreted, a native target can slow it";
        } else if (PyType_Check(object)) {
            what = "is a class, not a function: name a method of it";
        }
        if (what == nullptr) continue;
        sentences.push_back("line " + std::to_string(line.line_number) + ": '" +
                            line.container.text + ":" + line.name.text + "' " + what);
    }
    return sentences;
}

} // namespace speedbump::python
