// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "session.h"

// Work on all interpreters of the process. Called with the GIL of one of them held; for each other
// one it is given up, theirs is taken, and back.
namespace speedbump::python {

// Calls `work` inside every interpreter.
void for_each_interpreter(const std::function<void()>& work);

// Takes the hook out of every interpreter that has it.
void unhook_everywhere();

// Of the exact target lines, those that name something in the running interpreter that is not
// written in Python, each as a sentence: "line 3: 'math:sqrt' is a builtin ...".
std::vector<std::string> not_interpreted(const targets::TargetsFile& file);

} // namespace speedbump::python
