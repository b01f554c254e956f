// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include "util/clock.h"
#include "util/result.h"

namespace speedbump::inject {

// Takes out the few hundred bytes that a loader which was killed within an attach has left in the
// padding behind the code of a process, once no thread is in them: all are stopped for a look.
// True: there are none. kTimeout: another attach is under way, or not all could be stopped.
Result<bool> remove_left_stub(pid_t pid, Clock::time_point deadline);

} // namespace speedbump::inject
