// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>

#include "compat.h"

namespace speedbump::python {

// Owns one reference; the GIL is held wherever it is used.
class Ref {
  public:
    Ref() = default;
    explicit Ref(PyObject* owned) : object_(owned) {}
    Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Ref& operator=(Ref&& other) noexcept {
        if (this != &other) {
            Py_XDECREF(object_);
            object_ = std::exchange(other.object_, nullptr);
        }
        return *this;
    }
    Ref(const Ref&) = delete;
    Ref& operator=(const Ref&) = delete;
    ~Ref() { Py_XDECREF(object_); }
    static Ref borrow(PyObject* object) {
        Py_XINCREF(object);
        return Ref(object);
    }

    PyObject* get() const { return object_; }
    PyObject* release() { return std::exchange(object_, nullptr); }
    explicit operator bool() const { return object_ != nullptr; }

  private:
    PyObject* object_ = nullptr;
};

// Puts a Python error that is set aside and back when it goes out of scope; what is set in between
// is dropped.
class ErrorAside {
  public:
    ErrorAside() { PyErr_Fetch(&type_, &value_, &traceback_); }
    ~ErrorAside() { PyErr_Restore(type_, value_, traceback_); }
    ErrorAside(const ErrorAside&) = delete;
    ErrorAside& operator=(const ErrorAside&) = delete;

  private:
    PyObject* type_ = nullptr;
    PyObject* value_ = nullptr;
    PyObject* traceback_ = nullptr;
};

// The text of a str as bytes (surrogateescape, as in file names); empty for anything else. Clears
// its own errors.
std::string text_of(PyObject* object);

// The name that a module gives itself in its dict; empty for anything else.
std::string module_name(PyObject* globals);

// "TypeError: ..." of the error that is set, which it clears.
std::string take_error_text();

} // namespace speedbump::python
