// SPDX-License-Identifier: MIT
#include "util/descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

namespace speedbump {

namespace {

std::optional<rlim_t> allowed_at_first() {
    static const std::optional<rlim_t> allowed = [] {
        rlimit limit = {};
        return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? std::optional(limit.rlim_cur)
                                                       : std::nullopt;
    }();
    return allowed;
}

void allow_up_to(rlim_t wanted) {
    rlimit limit = {};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = std::min(wanted, limit.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &limit);
}

} // namespace

void hold_standard_streams() {
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (::fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
        // The least number that is free is this one. Each is open the other way round.
        const int held = ::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        if (held < 0) ::open("/", O_PATH); // a root that holds little but one program
    }
}

void allow_many_descriptors() {
    if (allowed_at_first()) allow_up_to(RLIM_INFINITY);
}

void allow_descriptors_as_before() {
    if (const auto allowed = allowed_at_first()) allow_up_to(*allowed);
}

} // namespace speedbump
