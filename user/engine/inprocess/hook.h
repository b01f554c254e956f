// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

// The code that runs in a target where a jump leads to it, and the memory that it works on. Words
// of the settings are written by the loader alone, in memory that nobody else can write.
namespace speedbump::engine::inprocess {

// The host's monotonic clock, which schedules go by, in the ticks that hooks read.
struct HookClock {
    uint64_t origin_ticks;
    uint64_t origin_ns;
    uint64_t ns_per_tick; // times 2^kNsShift
};
inline constexpr unsigned kNsShift = 32;

struct HookSettings {
    uint32_t armed;         // 0: no delay starts and the one in flight ends; nothing is counted
    uint32_t owner;         // a futex of the loader: the kernel says there when it dies
    uint32_t follow;        // 1: forked children that are not known yet are delayed, too
    uint32_t clock;         // how often it was set; the last bit tells which of `clocks` holds
    uint64_t ticks_per_ns;  // times 2^kTickShift
    uint64_t outside_ticks; // the part of a delayed call outside the timed spin
    HookClock clocks[2];    // the other one may be written just now
    uint64_t wake_ticks;    // how long before its end a delay that sleeps begins to spin
    uint64_t unused[5];
};
inline constexpr unsigned kTickShift = 24;
inline constexpr uint32_t kOwnerDied = 0x40000000; // FUTEX_OWNER_DIED

struct HookTarget {
    uint64_t delay_ns;    // or SB_SCHEDULED with a column
    uint64_t start_ticks; // 0: no start
    uint64_t end_ticks;   // 0: no end
    uint32_t enabled;
    uint32_t sleeps;
    uint64_t every;  // 0 and 1: each call
    uint64_t thread; // 0: on any; else the number of a HookThread, from 1
    uint64_t unused[2];
};

// What a trampoline reads of its target, a word beside those of the others: whether calls are to be
// counted, and whether there is more to do. Follows from a HookTarget while the table is armed.
enum class HookState : uint32_t {
    kOff = 0,
    kCounted = 1, // and no delay: the shared way counts without the hook
    kDelayed = 2, // or scheduled: the hook sees to it
};
constexpr HookState state_of(const HookTarget& target, bool is_armed) {
    if (!is_armed || target.enabled == 0) return HookState::kOff;
    return target.delay_ns == 0 ? HookState::kCounted : HookState::kDelayed;
}

// A glob that names of threads match.
inline constexpr uint64_t kMaxThreads = 16;
struct HookThread {
    uint64_t length;
    char pattern[56];
};

// Written by the target, as the number of hits is, which lies apart: numbers for the loader and
// nothing else.
struct HookDelays {
    uint64_t delays;
    uint64_t requested_ns;
    uint64_t measured_ticks;
};

// Of each site: for the process and for children that have forked from it, some each, so that its
// threads seldom write to the same one. First those of all sites of the children's first stripe:
// what one thread counts lies together.
inline constexpr uint64_t kStripes = 8;
inline constexpr uint64_t kOwnCounts =
    1;                        // what ProcessWord holds in the process; 0 in its children
using ProcessWord = uint64_t; // wiped by fork()

// What a process stamps hits by, in ticks: its vDSO's clock_gettime(), whose ticks are the
// nanoseconds of the host's monotonic clock.
struct ClockFunction {
    uint64_t address;  // 0: the time stamp counter
    uint64_t ahead_ns; // of the host's clock, in the time namespace of the process
    bool operator==(const ClockFunction&) const = default;
};

// Where the functions lie that `caller=` names: in code that the target can't write, while the
// loader may, who writes the half that does not hold. Behind it lies `capacity` twice of ranges.
struct HookCallers {
    uint32_t holds; // 0 or 1
    uint32_t capacity;
    uint32_t counts[2];
};
struct HookRange {
    uint64_t begin;
    uint64_t end;
};

// Addresses in the target, and how far they may be used; in code that it can't write.
struct HookRegion {
    uint64_t settings;
    uint64_t process;
    // Hits and HookSites of all slots lie as its trampolines do: for a call that returns to there
    // an eighth, and the half, of the address are that far from those of its slot.
    uint64_t hits_by_return; // of the first stripe
    uint64_t hits_stripe;    // bytes from one of a slot to its next one
    uint64_t sites_by_return;
    uint64_t schedule; // behind it the delays of its columns (abi.h); 0: there is none
    uint64_t slices;   // a ring for each of some CPUs, as many as a power of two
    uint32_t columns;
    uint32_t last_ring;
    ClockFunction clock;
    uint64_t threads; // HookThreads
    uint64_t hits;    // of the first slot
    uint64_t delays;  // HookDelays of the first slot
    uint64_t delays_stripe;
    uint64_t to_turn; // bytes from a HookTarget to its sb_turn
};
// By how much the region's description lies before the hook.
inline constexpr size_t kRegionToHook = 176;
struct HookSite {
    uint64_t target;
    uint64_t slot;            // of its hits and HookDelays
    uint64_t callers;         // HookCallers; 0: any
    uint64_t return_distance; // of the return address from the stack pointer at the site
};

// What the way to the hook lowers the stack pointer by, before it calls.
inline constexpr uint64_t kSavedBytes = 128 + 11 * sizeof(uint64_t);

static_assert(sizeof(HookSettings) == 128 && sizeof(HookTarget) == 64 && sizeof(HookDelays) == 24 &&
              sizeof(HookRegion) == 120 && sizeof(HookSite) == 32 && sizeof(HookThread) == 64 &&
              sizeof(HookCallers) == 16);

struct HookCode {
    const unsigned char* data;
    size_t size;
    // What trampolines call, with a HookState but kOff in %ecx: one that counts, and one that first
    // asks whether the call is wanted.
    size_t way;
    size_t filtered_way;
};
// To be copied byte by byte: it refers to nothing outside itself.
HookCode hook_code();

} // namespace speedbump::engine::inprocess
