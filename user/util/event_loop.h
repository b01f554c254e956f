// SPDX-License-Identifier: MIT
#pragma once

#include <sys/epoll.h>

#include <cerrno>
#include <cstdint>

#include "util/fd.h"
#include "util/result.h"

// epoll(7), set up in one way.
namespace speedbump {

inline Result<Fd> make_epoll() {
    Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll.valid()) return errno_error("epoll_create1", errno);
    return epoll;
}

// Has `epoll` tell when a descriptor is readable, with this data; error_number is EEXIST when it
// does already.
inline Result<void> watch_descriptor(const Fd& epoll, int fd, uint64_t data) {
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.u64 = data;
    if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0)
        return errno_error("epoll_ctl", errno);
    return {};
}
// With its own number, by which it is known in what epoll_wait() gives (data.fd).
inline Result<void> watch_descriptor(const Fd& epoll, int fd) {
    return watch_descriptor(epoll, fd, static_cast<uint64_t>(fd));
}

} // namespace speedbump
