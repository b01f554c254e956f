// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/inprocess/hook.h"
#include "util/result.h"

// The way from a site to the hook and back.
namespace speedbump::engine::inprocess {

// What a session's hooks have in common, by which regions are laid out.
struct Extent {
    uint32_t columns = 0; // of its schedule
    uint32_t rings = 1;   // of counts by slice: as many as a power of two
};

// The tables of callers of a region.
struct CallerTables {
    uint32_t count = 0;
    uint32_t capacity = 0; // ranges in each
};

// Where things lie in a region of a process: code and callers, settings, the process's word, counts
// of its own, and what all processes of the session count together.
struct Layout {
    Layout() = default;
    Layout(uint64_t address, size_t site_count, const Extent& extent,
           const CallerTables& callers = {});

    uint64_t code = 0;
    uint64_t settings = 0;
    uint64_t process = 0;
    uint64_t counts = 0;
    uint64_t stripe = 0; // bytes of counts, of which each site has one in each of 2 * kStripes
    uint64_t common = 0;
    uint64_t end = 0;
    Extent extent;
    CallerTables tables;
    uint64_t sites = 0;   // the first HookSite; behind it the others
    uint64_t callers = 0; // the first table; behind it the others
    uint64_t callers_of(size_t table) const;
    uint64_t trampoline(size_t site) const;
    uint64_t hook_site(size_t site) const;
    uint64_t counts_of(size_t site, uint64_t stripe_number) const;
    uint64_t target(uint32_t number) const;
    uint64_t turn(uint32_t target) const;
};
uint64_t settings_bytes(const Extent& extent);
uint64_t common_bytes(const Extent& extent);
// From the beginning of the settings, and of what is counted together.
uint64_t threads_offset();
uint64_t schedule_offset();
uint64_t slices_offset();

using Identity = std::array<unsigned char, 16>; // at the beginning of a region

// What a region begins with: who it is, where its parts lie, the clock, and the hook. Empty: it is
// too long.
std::string region_head(const Layout& layout, const Identity& identity, const ClockFunction& clock);

struct Trampoline {
    std::string bytes;           // to lie at Layout::trampoline()
    HookSite hook_site{};        // to lie at Layout::hook_site()
    uint64_t copy = 0;           // the address of the instructions that were replaced, in there
    std::vector<uint8_t> places; // where in that they begin
    std::array<unsigned char, 5> jump{}; // to lie at the site; or a call, where one stands there
};
// Which calls at a site are wanted.
struct Filter {
    bool is_asked = false;
    std::optional<size_t> callers; // a table of the region
    uint32_t return_distance = 0;  // elf::ProbeSite
};
// `range`: the instructions at `site`, an address in the process, that the jump takes the place of.
// kUnsupported: something is out of reach.
Result<Trampoline> make_trampoline(const Layout& layout, size_t number, uint32_t target,
                                   uint64_t site, std::basic_string_view<unsigned char> range,
                                   const Filter& filter = {});

} // namespace speedbump::engine::inprocess
