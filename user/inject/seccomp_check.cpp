// SPDX-License-Identifier: MIT
#include "inject/seccomp_check.h"

#include <fmt/format.h>
#include <sys/ptrace.h>

#include <cerrno>
#include <vector>

#include "inject/seccomp_filter.h"

namespace speedbump::inject {
namespace {

Result<std::vector<Filter>> read_filters(pid_t tid) {
    constexpr auto kGetFilter = static_cast<__ptrace_request>(0x420c); // absent in older headers
    std::vector<Filter> filters;
    for (long index = 0;; ++index) {
        const long size = ptrace(kGetFilter, tid, index, nullptr);
        if (size < 0 && errno == ENOENT && index > 0) return filters;
        if (size < 0) return errno_error("read its seccomp filter", errno);
        Filter filter(static_cast<size_t>(size));
        if (ptrace(kGetFilter, tid, index, filter.data()) != size)
            return errno_error("read its seccomp filter", errno);
        filters.push_back(std::move(filter));
    }
}

} // namespace

std::optional<Error> seccomp_obstacle(pid_t pid, pid_t tid, int mode,
                                      const std::vector<NeededCall>& calls) {
    if (mode == SECCOMP_MODE_DISABLED) return std::nullopt;
    const std::string who = fmt::format("process {}: thread {}", pid, tid);
    if (mode == SECCOMP_MODE_STRICT)
        return make_error(ErrorKind::kPermission,
                          who +
                              " is in seccomp's strict mode, which allows no call that an "
                              "attach makes");
    Result<std::vector<Filter>> filters = read_filters(tid);
    if (!filters) {
        Error error =
            std::move(filters.error()).with_context(who + " has a seccomp filter, mode 2");
        if (error.error_number == EIO) error.kind = ErrorKind::kUnsupported;
        return std::move(error).with_hint(
            error.error_number == EACCES
                ? "reading filters takes CAP_SYS_ADMIN, and that this program has no filter itself"
                : "this kernel does not show filters (CONFIG_CHECKPOINT_RESTORE); what they "
                  "forbid is not known, so the thread is left alone");
    }
    const std::optional<std::string> call = find_forbidden(*filters, calls);
    if (!call) return std::nullopt;
    return make_error(
               ErrorKind::kPermission,
               who + "'s seccomp filter does not allow a call that an attach makes: " + *call)
        .with_hint(
            "allow the call in the filter, or run the program without it while it is "
            "slowed");
}

} // namespace speedbump::inject
