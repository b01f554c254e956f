// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/inprocess/hook.h"
#include "util/result.h"

// The way from a site to the hook and back.
namespace speedbump::engine::inprocess {

// Where things lie in a region of a process: code, settings, the process's word, counts.
struct Layout {
    Layout() = default;
    Layout(uint64_t address, size_t site_count);

    uint64_t code = 0;
    uint64_t settings = 0;
    uint64_t process = 0;
    uint64_t counts = 0;
    uint64_t end = 0;
    uint64_t trampoline(size_t site) const;
    uint64_t counts_of(size_t site) const;
    uint64_t target(uint32_t number) const;
};
uint64_t settings_bytes();
uint64_t counts_bytes(size_t site_count);

using Identity = std::array<unsigned char, 16>; // at the beginning of a region

// What a region begins with: who it is, and the hook.
std::string region_head(const Identity& identity);

struct Trampoline {
    std::string bytes;           // to lie at Layout::trampoline()
    uint64_t copy = 0;           // the address of the instructions that were replaced, in there
    std::vector<uint8_t> places; // where in that they begin
    std::array<unsigned char, 5> jump{}; // to lie at the site; or a call, where one stands there
};
// `range`: the instructions at `site`, an address in the process, that the jump takes the place of.
// kUnsupported: something is out of reach.
Result<Trampoline> make_trampoline(const Layout& layout, size_t number, uint32_t target,
                                   uint64_t site, std::basic_string_view<unsigned char> range);

} // namespace speedbump::engine::inprocess
