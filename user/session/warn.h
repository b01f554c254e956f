// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>

namespace speedbump::session {

// Told of what the user should know while a session goes on, one line each.
using Warn = std::function<void(const std::string&)>;

} // namespace speedbump::session
