// SPDX-License-Identifier: MIT
#include "process/threads.h"

namespace speedbump::process {

const uint64_t kPthreadTid = 208;

} // namespace speedbump::process
