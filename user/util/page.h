// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

namespace speedbump {

inline constexpr size_t kPage = 4096; // bytes: the smallest that the supported machines have

} // namespace speedbump
