// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "util/character.h"

// Shell globs: * ? [abc] [!abc] [a-z], of which * and ? cross every character; an unclosed [ is a
// literal. A character is one of UTF-8, or a byte that is none. All of it is part of the code that
// runs in targets (engine/inprocess/hook.h), so that it calls nothing.
namespace speedbump::targets::glob {

#define SB_GLOB [[gnu::always_inline]] inline

inline constexpr size_t kNone = SIZE_MAX;

struct Text {
    const char* data;
    size_t size;
};

SB_GLOB Character character_at(const Text& text, size_t at) {
    return decode_character(text.data, text.size, at);
}

// The position of the `]` that closes the set whose `[` stands at `open`, or kNone. A `]` right
// after `[` or `[!` is a member, as in every shell.
SB_GLOB size_t find_set_end(const Text& pattern, size_t open) {
    size_t at = open + 1;
    if (at < pattern.size && pattern.data[at] == '!') ++at;
    for (++at; at < pattern.size; ++at)
        if (pattern.data[at] == ']') return at;
    return kNone;
}

// Whether the set pattern[open..close] holds the character.
SB_GLOB bool set_holds(const Text& pattern, size_t open, size_t close, uint32_t code) {
    size_t at = open + 1;
    const bool negated = pattern.data[at] == '!';
    if (negated) ++at;
    const Text members{pattern.data, close};
    bool found = false;
    while (at < close && !found) {
        const Character low = character_at(members, at);
        at += low.bytes;
        uint32_t high = low.code;
        if (at + 1 < close && members.data[at] == '-') {
            const Character end = character_at(members, at + 1);
            high = end.code;
            at += 1 + end.bytes;
        }
        found = code >= low.code && code <= high;
    }
    return found != negated;
}

// Whether the whole text matches. Only the last `*` is ever tried again: what an earlier one could
// take in addition, the later one can take too. So the work is at most the product of both lengths.
SB_GLOB bool match(const Text& pattern, const Text& text) {
    size_t at = 0;
    size_t position = 0;
    size_t star = kNone;           // just after the last `*` seen
    size_t star_position = 0;      // where its rest was last tried
    size_t first_unclosed = kNone; // from here on every `[` is a literal
    while (true) {
        bool advanced = false;
        if (at < pattern.size && pattern.data[at] == '*') {
            star = ++at;
            star_position = position;
            if (star == pattern.size) return true;
            continue;
        }
        if (position == text.size) {
            if (at == pattern.size) return true;
        } else if (at < pattern.size) {
            const Character wanted = character_at(pattern, at);
            const Character found = character_at(text, position);
            size_t set_end = kNone;
            if (wanted.code == '[' && at < first_unclosed) {
                set_end = find_set_end(pattern, at);
                if (set_end == kNone) first_unclosed = at;
            }
            if (wanted.code == '?') {
                advanced = true;
                at += 1;
            } else if (set_end != kNone) {
                advanced = set_holds(pattern, at, set_end, found.code);
                if (advanced) at = set_end + 1;
            } else {
                advanced = wanted.code == found.code;
                if (advanced) at += wanted.bytes;
            }
            if (advanced) position += found.bytes;
        }
        if (advanced) continue;
        if (star == kNone || star_position >= text.size) return false;
        star_position += character_at(text, star_position).bytes;
        position = star_position;
        at = star;
    }
}

#undef SB_GLOB

} // namespace speedbump::targets::glob
