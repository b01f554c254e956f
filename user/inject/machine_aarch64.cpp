// SPDX-License-Identifier: MIT
#include "inject/machine.h"

#include <fmt/format.h>
#include <linux/audit.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace speedbump::inject {

// The code of a region and its data lie in different pages only where those are small.
Result<void> can_borrow(pid_t pid) {
    const long page = sysconf(_SC_PAGESIZE);
    if (page == 4096) return {};
    return make_error(ErrorKind::kUnsupported,
                      fmt::format("process {}: with pages of {} KB Python functions of a process "
                                  "are not hooked from outside yet",
                                  pid, page / 1024))
        .with_hint("take the lines of Python functions out of the targets");
}

Result<void> can_change_code(pid_t pid) {
    return make_error(
        ErrorKind::kUnsupported,
        fmt::format("process {}: code of a process is not changed on aarch64 yet", pid));
}

const uint32_t kAuditArchitecture = AUDIT_ARCH_AARCH64;
const char* const kPollName = "ppoll"; // there is no older one
const int kPollCall = SYS_ppoll;
const uint64_t kUserEnd = 0xfffffffff000; // of 48 bits, which programs get unasked
// The function that the kernel stack of a thread holds while it is in a system call.
static constexpr std::string_view kCallOnKernelStack = "el0_svc";

// What call a thread was in is told by registers that are gone once it has left it: no names here.
CallOnStack call_on_stack(std::string_view kernel_stack) {
    using State = CallOnStack::State;
    const bool is_inside = kernel_stack.find(kCallOnKernelStack) != std::string_view::npos;
    return {is_inside ? State::kInside : State::kNone, -1};
}

long common_call(long number) {
    return number;
}

} // namespace speedbump::inject
