// SPDX-License-Identifier: MIT
#pragma once

#include <cerrno>

namespace speedbump {

// Whether a system call that failed with this errno may succeed later, nothing else being changed:
// the host or this program is short of something, or a signal came.
inline bool may_pass(int error_number) {
    return error_number == ENOMEM || error_number == EMFILE || error_number == ENFILE ||
           error_number == EAGAIN || error_number == EINTR;
}

} // namespace speedbump
