// SPDX-License-Identifier: MIT
#include "interpreters.h"

#include <algorithm>

#include "clock.h"
#include "cpython_state.h"
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

// In another interpreter for as long as it lives, if it could be visited.
class Visit {
  public:
    explicit Visit(int64_t interpreter) : visit_(sb_visit(interpreter)) {}
    ~Visit() {
        if (visit_ == nullptr) return;
        PyErr_Clear();
        sb_leave(visit_);
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;
    explicit operator bool() const { return visit_ != nullptr; }

  private:
    void* visit_;
};

// Leaves the GIL to the program for so long.
void give_turn(uint64_t ns) {
    constexpr uint64_t kLongestNs = 20'000'000;
    const WithoutGil without;
    without.leave(std::min(ns, kLongestNs));
}

} // namespace

size_t for_each_interpreter(const std::function<bool(bool keeps_gil)>& work) {
    constexpr size_t kMost = 1024;
    work(false);
    std::vector<int64_t> others(kMost);
    size_t closed = 0;
    others.resize(sb_list_others(others.data(), others.size(), &closed));
    for (const int64_t other : others) {
        for (bool done = false; !done;) {
            const uint64_t begin = now_ns();
            {
                const Visit visit(other);
                done = !visit || work(sb_keeps_gil() != 0);
                if (!visit && sb_is_there(other) != 0) ++closed;
            }
            if (!done) give_turn(now_ns() - begin);
        }
    }
    return closed;
}

void unhook_everywhere() {
    Interpreter* here = this_interpreter();
    if (here == nullptr) {
        PyErr_Clear();
        return;
    }
    unhook(*here);
    if (!any_hooked()) return;
    for_each_interpreter([](bool) {
        if (Interpreter* interpreter = this_interpreter()) unhook(*interpreter);
        return true;
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
