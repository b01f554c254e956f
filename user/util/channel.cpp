// SPDX-License-Identifier: MIT
#include "util/channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <vector>

namespace speedbump {

bool wait_readable(int fd, std::chrono::steady_clock::time_point deadline) {
    for (;;) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(
                              deadline - std::chrono::steady_clock::now())
                              .count();
        // Not even what waits already: a loop over what the other end sends without end must end.
        if (left <= 0) return false;
        pollfd wait{fd, POLLIN, 0};
        if (poll(&wait, 1, static_cast<int>(std::min<int64_t>(left, INT_MAX))) > 0) return true;
    }
}

int send_packet(int socket, std::string_view data, std::span<const int> descriptors) {
    iovec part{const_cast<char*>(data.data()), data.size()};
    msghdr packet{};
    packet.msg_iov = &part;
    packet.msg_iovlen = 1;
    // Words, for the alignment of a header.
    std::vector<uint64_t> control(CMSG_SPACE(descriptors.size_bytes()) / sizeof(uint64_t));
    if (!descriptors.empty()) {
        packet.msg_control = control.data();
        packet.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
        cmsghdr* header = CMSG_FIRSTHDR(&packet);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
        std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
    }
    return sendmsg(socket, &packet, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0;
}

} // namespace speedbump
