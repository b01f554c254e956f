// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "util/fd.h"
#include "util/result.h"

namespace speedbump {

// Where the sockets of this user's sessions are: /run/speedbump for root, else
// $XDG_RUNTIME_DIR/speedbump; kUnsupported when that is not set.
Result<std::string> control_directory();

// Opens it. It must be a directory, no symbolic link, owned by this user, and closed to everyone
// else (kPermission). With `create` it is made where it is missing, else that is kNotFound.
Result<Fd> open_control_directory(const std::string& path, bool create);

// A name for `name` in an open directory that is short enough for a socket address and can't be
// redirected. Valid while the descriptor is open.
std::string path_in(const Fd& directory, const std::string& name);

} // namespace speedbump
