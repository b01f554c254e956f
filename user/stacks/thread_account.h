// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "abi.h"
#include "stacks/profile.h"
#include "stacks/stack_reader.h"

namespace speedbump::stacks {

// A stack of both worlds.
struct Whole {
    Sampled thread;
    std::vector<WholeFrame> frames;
    bool is_whole = true; // else one of the runtimes, or some of the native callers, are missing
};

// One that counts once its Python frames are certain; then nothing is left of them.
struct Pending {
    Whole stack;
    std::vector<Frame> python;
};

// Neither on a CPU nor waiting for one.
bool is_asleep(const sb_thread& thread);
// Whether the same thread has not run in between.
bool is_same(const sb_still& one, const sb_still& other);

// Where the time of a thread went, by the kernel's accounts. To be found asleep or waiting at a
// look tells where, but not how long: looks and what threads wake up for are not independent, as
// this program takes CPUs from them.
struct ThreadAccount {
    sb_thread last{}; // at the look before, at `last_ns`
    uint64_t last_ns = 0;
    uint64_t asleep_ns = 0; // not counted yet
    uint64_t waiting_ns = 0;
    uint64_t owed_ns = 0;            // ran or waited more than has passed: its account had lagged
    std::optional<Pending> waits_at; // what it waits for a CPU with, as far as that is known
    std::optional<Pending> ran_at;   // what it was last seen running with

    // Adds what the thread has done since the look before; begins anew for another thread with its
    // id.
    void book(const sb_thread& thread, uint64_t now_ns);
    void wait_at(const Pending& stack);
};

// The whole periods of a time, which are taken off it.
uint64_t take_periods(uint64_t& ns, std::chrono::nanoseconds period);

} // namespace speedbump::stacks
