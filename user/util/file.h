// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "util/fd.h"

namespace speedbump {

// Opens `path` as a process with this root does: no symbolic link leads out of it, so an absolute
// one in a container means the container's root. errno where the descriptor isn't valid.
Fd open_below(const Fd& root, const std::string& path, int flags);
// The same by the root's name; "" is our own, where links lead wherever they do.
Fd open_below(const std::string& root, const std::string& path, int flags);

} // namespace speedbump
