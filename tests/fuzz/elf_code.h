// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "mutator.h"

namespace speedbump::fuzz {

// Instructions, of which the last four bytes are a distance where it says so.
struct CodePiece {
    std::string_view bytes;
    bool is_far = false;
};
#ifdef __x86_64__
inline constexpr std::array<CodePiece, 18> kCodePieces = {{
    {"\x90"},
    {"\xc3"},
    {"\xf3\x0f\x1e\xfa"},
    {{"\x0f\x1f\x44\x00\x00", 5}},
    {"\x55"},
    {"\x48\x89\xe5"},
    {{"\x48\x83\xec\x08", 4}},
    {{"\xe9\0\0\0\0", 5}, true},
    {{"\xe8\0\0\0\0", 5}, true},
    {{"\x0f\x84\0\0\0\0", 6}, true},
    {{"\x48\x8d\x05\0\0\0\0", 7}, true},
    {{"\x48\x8d\x05\x02\0\0\0\xff\xe0", 9}}, // leads on to what follows
    {{"\x48\x8d\x05\x02\0\0\0\xff\xe0", 9}},
    {{"\x48\x8d\x05\x02\0\0\0\xff\xe0", 9}},
    {"\xff\xe0"},
    {"\x3e\xff\xe0"},
    {"\x83\xf8\x10\x77\x02\x3e\xff\xe0"}, // a switch
    {"\x0f\x0b"},
}};
#else
inline constexpr std::array<CodePiece, 6> kCodePieces = {{
    {{"\x1f\x20\x03\xd5", 4}},
    {{"\xc0\x03\x5f\xd6", 4}},
    {{"\x00\x00\x00\x10", 4}}, // adr x0, .
    {{"\x00\x00\x1f\xd6", 4}}, // br x0
    {{"\x04\x00\x00\x14", 4}}, // b
    {{"\x3f\x23\x03\xd5", 4}},
}};
#endif

// Code of a few kinds of instructions at most. Where far ones lead is around, or in data behind it.
inline std::string make_code(Random& random, size_t size) {
    const size_t kinds = 1 + random.below(3);
    std::array<size_t, 3> chosen;
    for (size_t& one : chosen) one = random.below(kCodePieces.size());
    const uint64_t reach = size * (1 + random.below(2)) + 64;
    std::string text;
    text.reserve(size + 16);
    while (text.size() < size) {
        const CodePiece& piece = kCodePieces[chosen[random.below(kinds)]];
        text += piece.bytes;
        if (!piece.is_far) continue;
        const auto far =
            static_cast<int32_t>(random.next() % reach) - static_cast<int32_t>(text.size());
        std::memcpy(text.data() + text.size() - 4, &far, sizeof far);
    }
    return text;
}

} // namespace speedbump::fuzz
