// SPDX-License-Identifier: MIT
#include "process/ownership.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>
#include <string>

#include "util/proc.h"

namespace speedbump::process {

bool is_ours(pid_t pid) {
    const uid_t caller = getuid();
    if (caller == 0) return true;
    const std::string place = fmt::format("/proc/{}", pid);
    struct stat owner {};
    if (stat(place.c_str(), &owner) != 0 || owner.st_uid != caller) return false;
    std::istringstream ids(status_field(pid, "Uid"));
    uid_t real = 0, effective = 0, saved = 0;
    return ids >> real >> effective >> saved && real == caller && effective == caller &&
           saved == caller;
}

Result<void> require_ours(std::span<const pid_t> pids) {
    for (const pid_t pid : pids) {
        if (is_ours(pid)) continue;
        if (access(fmt::format("/proc/{}", pid).c_str(), F_OK) != 0 && errno == ENOENT) continue;
        return make_error(ErrorKind::kPermission,
                          fmt::format("process {} is another user's, or has more rights than you: "
                                      "without root only your own processes are slowed or looked "
                                      "into",
                                      pid))
            .with_hint("run as root (sudo)");
    }
    return {};
}

} // namespace speedbump::process
