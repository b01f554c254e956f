// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "session.h"

// Work on all interpreters of the process. Called with the GIL of one of them held.
namespace speedbump::python {

// Calls `work` inside this interpreter, and then inside every other one that can be visited. What
// it is given: whether it must neither give the GIL up nor run Python code there. It returns
// whether it is done with that interpreter; if not it is called there again, when the program has
// had the GIL for as long. Returns how many were left alone (cpython_state.h).
size_t for_each_interpreter(const std::function<bool(bool keeps_gil)>& work);

// Takes the hook out of every interpreter that has it.
void unhook_everywhere();

// Of the exact target lines, those that name something in the running interpreter that is not
// written in Python, each as a sentence: "line 3: 'math:sqrt' is a builtin ...".
std::vector<std::string> not_interpreted(const targets::TargetsFile& file);

} // namespace speedbump::python
