// SPDX-License-Identifier: MIT
#include "util/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace speedbump {

namespace {

struct CodePoints {
    uint32_t first;
    uint32_t last;
};

template <size_t N>
bool in_ranges(const std::array<CodePoints, N>& ranges, uint32_t code) {
    return std::any_of(ranges.begin(), ranges.end(), [code](const CodePoints& range) {
        return code >= range.first && code <= range.last;
    });
}

constexpr std::array<CodePoints, 8> kEscaped = {{
    {0x00, 0x1f},
    {0x7f, 0x9f},
    {0x200e, 0x200f}, // direction marks and overrides would show the line in another order
    {0x2028, 0x2029},
    {0x202a, 0x202e},
    {0x2066, 0x2069},
    {0xfff9, 0xfffb},
    {kInvalidByteBase, kInvalidByteBase + 0xff},
}};

constexpr std::array<CodePoints, 6> kZeroWidth = {{
    {0x0300, 0x036f},
    {0x200b, 0x200d},
    {0x20d0, 0x20ff},
    {0xfe00, 0xfe0f},
    {0xfeff, 0xfeff},
    {0xe0100, 0xe01ef},
}};

constexpr std::array<CodePoints, 13> kWide = {{
    {0x1100, 0x115f},
    {0x2e80, 0x303e},
    {0x3041, 0x33ff},
    {0x3400, 0x4dbf},
    {0x4e00, 0x9fff},
    {0xa000, 0xa4cf},
    {0xac00, 0xd7a3},
    {0xf900, 0xfaff},
    {0xfe30, 0xfe6f},
    {0xff00, 0xff60},
    {0xffe0, 0xffe6},
    {0x1f300, 0x1faff},
    {0x20000, 0x3fffd},
}};

} // namespace

std::string printable(std::string_view text) {
    std::string shown;
    shown.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
        const Character character = decode_character(text, at);
        const std::string_view bytes = text.substr(at, character.bytes);
        if (in_ranges(kEscaped, character.code)) {
            for (const char byte : bytes) {
                fmt::format_to(std::back_inserter(shown), "\\x{:02x}",
                               static_cast<unsigned char>(byte));
            }
        } else {
            shown += bytes;
        }
        at += character.bytes;
    }
    return shown;
}

size_t printed_columns(Character character) {
    if (character.code >= 0x20 && character.code < 0x7f) return 1;
    if (in_ranges(kEscaped, character.code)) return size_t{4} * character.bytes;
    if (in_ranges(kZeroWidth, character.code)) return 0;
    if (in_ranges(kWide, character.code)) return 2;
    return 1;
}

} // namespace speedbump
