// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

// What the loader and the thread of mapper_payload_x86_64.cpp say to each other over the bootstrap
// socket, and nothing else.
namespace speedbump::inject {

inline constexpr size_t kMaxMappings = 5;
inline constexpr size_t kMappedFiles = 3;

inline constexpr int32_t kPrivate = -1;
inline constexpr int32_t kUnmap = -2; // what is there is taken away

struct MapOrder {
    uint64_t address;
    uint64_t size;
    int32_t protection;
    int32_t file;   // of the descriptors sent along, kPrivate or kUnmap
    uint32_t wiped; // 1: a forked child finds zeros there (MADV_WIPEONFORK)
    uint32_t reserved;
};

struct MapOrders {
    uint32_t count;
    uint32_t reserved;
    MapOrder orders[kMaxMappings];
};

enum MapStep : uint32_t {
    kMapDone = 0,
    kMapMapping = 1,    // an order failed; what was mapped before it is unmapped
    kMapMembarrier = 2, // the kernel has no barrier for changed code
    kMapClock = 3,      // the thread may not read the time stamp counter
};

struct MapAnswer {
    uint32_t step; // MapStep
    int32_t error; // errno
};

uint64_t mapper_offset(); // of the thread's entry in the payload

} // namespace speedbump::inject
