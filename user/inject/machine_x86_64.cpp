// SPDX-License-Identifier: MIT
#include "inject/machine.h"

#include <linux/audit.h>
#include <sys/syscall.h>

namespace speedbump::inject {

Result<void> can_borrow(pid_t) {
    return {};
}

Result<void> can_change_code(pid_t) {
    return {};
}

const uint32_t kAuditArchitecture = AUDIT_ARCH_X86_64;
const char* const kPollName = "poll";
const int kPollCall = SYS_poll;
const uint64_t kUserEnd = 0x7fff00000000;
const char* const kCallOnKernelStack = "do_syscall_64";

long common_call(long number) {
    switch (number) {
        case SYS_poll:
            return SYS_ppoll;
        case SYS_select:
            return SYS_pselect6;
        case SYS_pause: // until a signal, as a sleep that has no end
            return SYS_nanosleep;
        case SYS_epoll_wait:
            return SYS_epoll_pwait;
        default:
            return number;
    }
}

} // namespace speedbump::inject
