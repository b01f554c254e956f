// SPDX-License-Identifier: MIT
#pragma once

#include "inject/target_lock.h"
#include "util/clock.h"
#include "util/result.h"

namespace speedbump::inject {

// Takes out the few hundred bytes that a loader which was killed within an attach has left in the
// padding behind the code of a process, once no thread is in them: all are stopped for a look.
// True: there are none. kTimeout: not all could be stopped.
Result<bool> remove_left_stub(const Turn& turn, Clock::time_point deadline);

} // namespace speedbump::inject
