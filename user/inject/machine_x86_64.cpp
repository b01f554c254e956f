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
// The function that the kernel stack of a thread holds while it is in a system call.
static constexpr std::string_view kCallOnKernelStack = "do_syscall_64";

// By the names that SYSCALL_DEFINE*() makes, and those of kernel/entry/common.c.
CallOnStack call_on_stack(std::string_view kernel_stack) {
    using State = CallOnStack::State;
    if (kernel_stack.find(kCallOnKernelStack) == std::string_view::npos) return {};
    if (kernel_stack.find("exit_to_user_mode") != std::string_view::npos)
        return {State::kLeaving, -1};
    // Those that judge_interruption() takes for harmless whatever their arguments are.
    for (const auto& [name, number] :
         {std::pair{" __x64_sys_clock_nanosleep+", long{SYS_clock_nanosleep}},
          std::pair{" __x64_sys_nanosleep+", long{SYS_nanosleep}},
          std::pair{" __x64_sys_poll+", long{SYS_poll}},
          std::pair{" __x64_sys_ppoll+", long{SYS_ppoll}},
          std::pair{" __x64_sys_select+", long{SYS_select}},
          std::pair{" __x64_sys_pselect6+", long{SYS_pselect6}},
          std::pair{" __x64_sys_wait4+", long{SYS_wait4}},
          std::pair{" __x64_sys_waitid+", long{SYS_waitid}}})
        if (kernel_stack.find(name) != std::string_view::npos) return {State::kInside, number};
    return {State::kInside, -1};
}

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
