// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

// The code that runs in a target where a jump leads to it, and the memory that it works on. Words
// of the settings are written by the loader alone, in memory that nobody else can write.
namespace speedbump::engine::inprocess {

struct HookSettings {
    uint32_t armed;  // 0: no delay starts and the one in flight ends; nothing is counted
    uint32_t owner;  // a futex of the loader: the kernel says there when it dies
    uint32_t follow; // 1: forked children that are not known yet are delayed, too
    uint32_t reserved;
    uint64_t ticks_per_ns;  // times 2^kTickShift
    uint64_t outside_ticks; // the part of a delayed call outside the timed spin
    uint64_t unused[4];
};
inline constexpr unsigned kTickShift = 24;
inline constexpr uint32_t kOwnerDied = 0x40000000; // FUTEX_OWNER_DIED

struct HookTarget {
    uint64_t delay_ns;
    uint64_t start_ticks; // 0: no start
    uint64_t end_ticks;   // 0: no end
    uint32_t enabled;
    uint32_t reserved;
    uint64_t unused[4];
};

// Written by the target: numbers for the loader and nothing else.
struct HookCounts {
    uint64_t hits;
    uint64_t delays;
    uint64_t requested_ns;
    uint64_t measured_ticks;
};

// Of each site: for the process and for children that have forked from it, some each, so that its
// threads seldom write to the same one.
inline constexpr uint64_t kStripes = 8;
inline constexpr uint64_t kOwnCounts =
    1; // what ProcessWord holds in the process; 0 in its children
inline constexpr uint64_t kCountsPerSite = 2 * kStripes;
using ProcessWord = uint64_t; // wiped by fork()

// Addresses in the target; in code that it can't write.
struct HookSite {
    uint64_t settings;
    uint64_t target;
    uint64_t process;
    uint64_t counts; // kCountsPerSite of them
};

static_assert(sizeof(HookSettings) == 64 && sizeof(HookTarget) == 64 && sizeof(HookCounts) == 32 &&
              sizeof(HookSite) == 32);

struct HookCode {
    const unsigned char* data;
    size_t size;
    size_t entry; // of the function that takes a HookSite
};
// To be copied byte by byte: it refers to nothing outside itself.
HookCode hook_code();

} // namespace speedbump::engine::inprocess
