// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace speedbump {

// One character of a text that should be UTF-8 but may hold any bytes.
struct Character {
    uint32_t code = 0;  // code point; a byte that is no UTF-8 is kInvalidByteBase + the byte
    uint32_t bytes = 1; // length in the text
};

inline constexpr uint32_t kInvalidByteBase = 0x110000;

// The character that starts at text[at]; `at` must be inside the text. Overlong forms, surrogates
// and cut sequences count as single invalid bytes.
Character decode_character(std::string_view text, size_t at);

// `text` with everything that a terminal would not show as one plain character (control
// characters, bytes that are no UTF-8, direction overrides) written as \xNN per byte; tabs too.
std::string printable(std::string_view text);

// Columns that a terminal uses for a character as printable() writes it: 0, 1, 2, or 4 per
// escaped byte.
size_t printed_columns(Character character);

} // namespace speedbump
