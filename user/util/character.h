// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

namespace speedbump {

// One character of a text that should be UTF-8 but may hold any bytes.
struct Character {
    uint32_t code = 0;  // code point; a byte that is no UTF-8 is kInvalidByteBase + the byte
    uint32_t bytes = 1; // length in the text
};

inline constexpr uint32_t kInvalidByteBase = 0x110000;

// The character that starts at text[at]; `at` must be inside the text, which has `size` bytes.
// Overlong forms, surrogates and cut sequences count as single invalid bytes. Part of the code that
// runs in targets, so that it calls nothing.
[[gnu::always_inline]] inline Character decode_character(const char* text, size_t size, size_t at) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(text) + at;
    const uint32_t lead = bytes[0];
    if (lead < 0x80) return {lead, 1};
    const Character invalid{kInvalidByteBase + lead, 1};
    uint32_t length = 0;
    uint32_t smallest = 0;
    uint32_t code = 0;
    if ((lead & 0xe0) == 0xc0) {
        length = 2;
        smallest = 0x80;
        code = lead & 0x1f;
    } else if ((lead & 0xf0) == 0xe0) {
        length = 3;
        smallest = 0x800;
        code = lead & 0x0f;
    } else if ((lead & 0xf8) == 0xf0) {
        length = 4;
        smallest = 0x10000;
        code = lead & 0x07;
    } else {
        return invalid;
    }
    if (size - at < length) return invalid;
    for (uint32_t index = 1; index < length; ++index) {
        if ((bytes[index] & 0xc0) != 0x80) return invalid;
        code = code << 6 | (bytes[index] & 0x3f);
    }
    const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
    if (code < smallest || code > 0x10ffff || is_surrogate) return invalid;
    return {code, length};
}

} // namespace speedbump
