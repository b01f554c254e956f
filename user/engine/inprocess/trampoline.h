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
    // `slots`: of all trampolines; see slots_of().
    Layout(uint64_t address, size_t slots, const Extent& extent, const CallerTables& callers = {});

    uint64_t code = 0;
    uint64_t settings = 0;
    uint64_t process = 0;
    // Hits, and behind them HookDelays: 2 * kStripes times those of all slots.
    uint64_t counts = 0;
    uint64_t hits_stripe = 0;
    uint64_t delays = 0;
    uint64_t delays_stripe = 0;
    uint64_t common = 0;
    uint64_t end = 0;
    Extent extent;
    CallerTables tables;
    uint64_t sites = 0;   // the first HookSite; behind it those of the other slots
    uint64_t callers = 0; // the first table; behind it the others
    uint64_t callers_of(size_t table) const;
    uint64_t trampoline(size_t slot) const;
    uint64_t hook_site(size_t slot) const;
    uint64_t hits_of(size_t slot, uint64_t stripe) const;
    uint64_t delays_of(size_t slot, uint64_t stripe) const;
    uint64_t target(uint32_t number) const;
    uint64_t state(uint32_t target) const;
    uint64_t turn(uint32_t target) const;
};
uint64_t settings_bytes(const Extent& extent);
uint64_t common_bytes(const Extent& extent);
// From the beginning of the settings, and of what is counted together.
uint64_t states_offset(); // a HookState of each target
uint64_t threads_offset();
uint64_t schedule_offset();
uint64_t slices_offset();

using Identity = std::array<unsigned char, 16>; // at the beginning of a region

// What a region begins with: who it is, where its parts lie, the clock, and the hook. Empty: it is
// too long.
std::string region_head(const Layout& layout, const Identity& identity, const ClockFunction& clock);

struct Trampoline {
    size_t slot = 0;
    std::string bytes;           // to lie at Layout::trampoline(), all of its slots
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
// How many slots a trampoline takes, one after the other, of which it is known by the first: two
// where the instructions at `site` that the jump takes the place of are long.
size_t slots_of(uint64_t site, std::basic_string_view<unsigned char> range);
// `range`: those instructions; `site`: an address in the process. kUnsupported: something is out of
// reach.
Result<Trampoline> make_trampoline(const Layout& layout, size_t slot, uint32_t target,
                                   uint64_t site, std::basic_string_view<unsigned char> range,
                                   const Filter& filter = {});

} // namespace speedbump::engine::inprocess
