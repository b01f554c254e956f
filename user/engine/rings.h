// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace speedbump::engine {

// How many copies of what is counted by slice there are for so many CPUs, of so many bytes each: a
// power of two. A host, or a virtual machine that could have them, may have thousands of CPUs.
constexpr uint32_t rings_for(uint64_t cpus, uint64_t ring_bytes) {
    constexpr uint64_t kMostBytes = uint64_t{64} << 20;
    uint32_t rings = 1;
    while (rings < cpus && 2 * rings * ring_bytes <= kMostBytes) rings *= 2;
    return rings;
}

} // namespace speedbump::engine
