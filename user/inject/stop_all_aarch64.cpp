// SPDX-License-Identifier: MIT
#include "inject/stop_all.h"

#include "inject/machine.h"

namespace speedbump::inject {

Result<void> change_code(pid_t pid, const Witness&, std::span<CodeChange>, Quiet*,
                         Clock::time_point) {
    if (auto can = can_borrow(pid); !can) return can;
    return make_error(ErrorKind::kUnsupported, "code is not changed on aarch64 yet");
}

} // namespace speedbump::inject
