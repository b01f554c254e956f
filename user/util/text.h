// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "util/character.h"

namespace speedbump {

// The character that starts at text[at]; `at` must be inside the text.
inline Character decode_character(std::string_view text, size_t at) {
    return decode_character(text.data(), text.size(), at);
}

// `text` with everything that a terminal would not show as one plain character (control
// characters, bytes that are no UTF-8, direction overrides) written as \xNN per byte; tabs too.
std::string printable(std::string_view text);

// Columns that a terminal uses for a character as printable() writes it: 0, 1, 2, or 4 per
// escaped byte.
size_t printed_columns(Character character);

} // namespace speedbump
