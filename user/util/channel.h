// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <span>
#include <string_view>

// Unix sockets to processes that are not ours.
namespace speedbump {

// Waits until a descriptor can be read, or its other end is gone. False once the deadline has
// passed, whatever can be read: who sends without end holds nobody up for longer.
bool wait_readable(int fd, std::chrono::steady_clock::time_point deadline);

// Sends one packet with descriptors (SCM_RIGHTS, unix(7)); never waits and raises no SIGPIPE.
// 0, or an errno: EAGAIN when the other end does not read.
int send_packet(int socket, std::string_view data, std::span<const int> descriptors);

} // namespace speedbump
