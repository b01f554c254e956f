// SPDX-License-Identifier: MIT
// What the in-process engine needs of a process, and what it is refused on aarch64.
#include "inject/stop_all.h"

#include "inject/machine.h"
#include "inject/mapper_payload.h"

namespace speedbump::inject {

Result<void> change_code(const Turn& turn, const Witness&, std::span<CodeChange>, Quiet*,
                         Clock::time_point) {
    return can_change_code(turn.pid());
}

// map_memory() refuses before it comes here.
uint64_t mapper_offset() {
    return 0;
}

} // namespace speedbump::inject
