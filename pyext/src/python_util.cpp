// SPDX-License-Identifier: MIT
#include "python_util.h"

namespace speedbump::python {

std::string text_of(PyObject* object) {
    if (object == nullptr || !PyUnicode_Check(object)) return {};
    Py_ssize_t size = 0;
    if (const char* text = PyUnicode_AsUTF8AndSize(object, &size)) {
        return std::string(text, static_cast<size_t>(size));
    }
    PyErr_Clear();
    const Ref bytes(PyUnicode_AsEncodedString(object, "utf-8", "surrogateescape"));
    if (!bytes) {
        PyErr_Clear();
        return {};
    }
    return std::string(PyBytes_AS_STRING(bytes.get()),
                       static_cast<size_t>(PyBytes_GET_SIZE(bytes.get())));
}

std::string module_name(PyObject* globals) {
    return globals != nullptr && PyDict_Check(globals)
               ? text_of(PyDict_GetItemString(globals, "__name__"))
               : "";
}

std::string take_error_text() {
    PyObject* type = nullptr;
    PyObject* value = nullptr;
    PyObject* traceback = nullptr;
    PyErr_Fetch(&type, &value, &traceback);
    const Ref type_ref(type);
    const Ref value_ref(value);
    const Ref traceback_ref(traceback);
    std::string text = type != nullptr && PyType_Check(type)
                           ? reinterpret_cast<PyTypeObject*>(type)->tp_name
                           : "unknown error";
    const Ref message(value != nullptr ? PyObject_Str(value) : nullptr);
    if (!message) PyErr_Clear();
    const std::string detail = text_of(message.get());
    return detail.empty() ? text : text + ": " + detail;
}

} // namespace speedbump::python
