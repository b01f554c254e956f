// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

namespace speedbump::engine {

// Whether a test has declared a feature of the host absent (SPEEDBUMP_WITHOUT=uprobe_multi,tsc).
bool is_declared_absent(std::string_view name);

} // namespace speedbump::engine
