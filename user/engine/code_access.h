// SPDX-License-Identifier: MIT
#pragma once

#include "engine/features.h"

namespace speedbump::engine {

// Whether this kernel lets us write to the code of processes, tried on a child of our own: CPython
// up to 3.13 can't be entered without, and the in-process engine neither (inject/write_code.h).
Check check_code_access();

} // namespace speedbump::engine
