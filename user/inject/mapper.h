// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "inject/mapper_payload.h"
#include "inject/target_lock.h"
#include "util/clock.h"
#include "util/result.h"

namespace speedbump::inject {

// Makes mappings in a running process, at addresses where nothing is yet, and has the kernel see to
// it that its threads see changed code. A thread of the process does it that is gone afterwards,
// and all descriptors with it; either all mappings are there or none. `files`: descriptors of ours
// that they are of. kPermission, kUnsupported and kTimeout as of inject(); EEXIST as errno: an
// address was taken meanwhile.
Result<void> map_memory(const Turn& turn, const std::vector<MapOrder>& orders,
                        const int (&files)[kMappedFiles], Clock::time_point deadline);

} // namespace speedbump::inject
