// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "session.h"

// The qualified name of code. From 3.11 on the code object has it; on 3.10 it stands in the
// bytecode of the enclosing code, beside the constant that makes the function, and is copied from
// there into the nested code object. GIL held; none of these raises.
namespace speedbump::python {

// The code extra index for names; -1 where code objects have their own.
Py_ssize_t request_name_index();

// `module.function.<locals>.inner` without the module; co_name when nothing better is known.
std::string qualified_name(Interpreter& interpreter, PyCodeObject* code);

// Gives every code object nested in this one its name.
void note_nested_names(Interpreter& interpreter, PyCodeObject* code);

// Gives the function's code its __qualname__ unless it has a name already.
void note_function_name(Interpreter& interpreter, PyObject* function);

} // namespace speedbump::python
