// SPDX-License-Identifier: MIT
#include "functions.h"

#if !SB_FREE_THREADED

namespace speedbump::python {
namespace {

// What is larger holds data. Of other objects so many references are looked at.
constexpr Py_ssize_t kLargestTable = 128;
constexpr unsigned kMostSteps = 16;
constexpr size_t kMostOfOneValue = 1024; // objects
constexpr size_t kAtOnce = 1024;
constexpr size_t kMostOfAll = size_t{1} << 18; // a few MB of the program's memory meanwhile

bool is_large(PyObject* object) {
    if (PyDict_Check(object)) return PyDict_GET_SIZE(object) > kLargestTable;
    if (PyList_Check(object) || PyTuple_Check(object)) return Py_SIZE(object) > kLargestTable;
    return PyAnySet_Check(object) && PySet_GET_SIZE(object) > kLargestTable;
}

} // namespace

FunctionFinder::FunctionFinder(LeavesOut leaves_out) : leaves_out_(std::move(leaves_out)) {
    PyObject* modules = PyImport_GetModuleDict();
    PyObject* module = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(modules, &at, nullptr, &module);)
        if (PyModule_Check(module)) add_names(PyModule_GetDict(module));
}

void FunctionFinder::add_names(PyObject* dict) {
    if (dict == nullptr || !PyDict_Check(dict) || leaves_out_(dict)) return;
    if (seen_.insert(dict).second) names_.push_back({Ref::borrow(dict)});
}

void FunctionFinder::add_class(PyTypeObject* type) {
    const auto is_new = [this](PyTypeObject* one) {
        // What C has made for good has no functions in it.
        return PyType_HasFeature(one, Py_TPFLAGS_HEAPTYPE) &&
               seen_.insert(reinterpret_cast<PyObject*>(one)).second;
    };
    // The metaclasses of what it is derived from are such of its own metaclass.
    for (; is_new(type); type = Py_TYPE(type)) {
        add_names(type->tp_dict);
        PyObject* line = type->tp_mro;
        for (Py_ssize_t i = 0; line != nullptr && i < PyTuple_GET_SIZE(line); ++i) {
            PyObject* base = PyTuple_GET_ITEM(line, i);
            auto* const derived_from = reinterpret_cast<PyTypeObject*>(base);
            if (PyType_Check(base) && is_new(derived_from)) add_names(derived_from->tp_dict);
        }
    }
}

void FunctionFinder::meet(PyObject* object) {
    if (PyType_Check(object)) return add_class(reinterpret_cast<PyTypeObject*>(object));
    add_class(Py_TYPE(object));
    // The collector's rule of what it may look into.
    if (!PyObject_GC_IsTracked(object) || is_large(object)) return;
    if (PyModule_Check(object)) return add_names(PyModule_GetDict(object));
    if (PyFunction_Check(object)) {
        if (leaves_out_(PyFunction_GET_GLOBALS(object))) return;
        add_names(PyFunction_GET_GLOBALS(object));
    }
    if (!seen_.insert(object).second) return;
    if (PyFunction_Check(object)) functions_.push_back(Ref::borrow(object));
    if (steps_ < kMostSteps) ahead_.emplace_back(object, steps_ + 1);
}

// All at once: nothing in there is held.
void FunctionFinder::follow(PyObject* value) {
    steps_ = 0;
    meet(value);
    for (size_t done = 0; !ahead_.empty() && done < kMostOfOneValue; ++done) {
        PyObject* object = ahead_.back().first;
        steps_ = ahead_.back().second;
        ahead_.pop_back();
        references_ = 0;
        const traverseproc traverse = Py_TYPE(object)->tp_traverse;
        if (traverse == nullptr) continue;
        traverse(
            object,
            [](PyObject* referent, void* self) {
                auto& finder = *static_cast<FunctionFinder*>(self);
                if (++finder.references_ > kLargestTable) return 1;
                finder.meet(referent);
                return 0;
            },
            this);
    }
    ahead_.clear();
}

bool FunctionFinder::step() {
    const size_t enough = seen_.size() + kAtOnce;
    for (size_t values = 0; values < kAtOnce && seen_.size() < enough; ++values) {
        if (names_.empty() || seen_.size() >= kMostOfAll) return false;
        // A place stays one to go on from, whatever becomes of the dict meanwhile.
        Names& names = names_.front();
        PyObject* value = nullptr;
        if (PyDict_Next(names.dict.get(), &names.at, nullptr, &value))
            follow(value);
        else
            names_.pop_front();
    }
    return true;
}

} // namespace speedbump::python

#endif
