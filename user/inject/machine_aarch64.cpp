// SPDX-License-Identifier: MIT
#include "inject/machine.h"

#include <fmt/format.h>
#include <linux/audit.h>
#include <sys/syscall.h>

namespace speedbump::inject {

Result<void> can_borrow(pid_t pid) {
    return make_error(ErrorKind::kUnsupported,
                      fmt::format("process {}: Python functions of a process are not hooked from "
                                  "outside on aarch64 yet",
                                  pid))
        .with_hint("take the lines of Python functions out of the targets");
}

const uint32_t kAuditArchitecture = AUDIT_ARCH_AARCH64;
const char* const kPollName = "ppoll"; // there is no older one
const int kPollCall = SYS_ppoll;
const uint64_t kUserEnd = 0xffff00000000; // of 48 bits, the smallest that distributions have

long common_call(long number) {
    return number;
}

} // namespace speedbump::inject
