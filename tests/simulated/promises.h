// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

// What the programs of simulations share: how many of what, from which seed, and what is promised.
namespace speedbump::simulated {

struct Draws {
    size_t count = 0;
    uint64_t seed = 0; // of the first; the others follow
};

// PROGRAM [COUNT [SEED]]
inline Draws draws_of(int count, char** arguments, size_t default_count) {
    return {count > 1 ? std::strtoull(arguments[1], nullptr, 0) : default_count,
            count > 2 ? std::strtoull(arguments[2], nullptr, 0)
                      : (uint64_t{std::random_device{}()} << 20)};
}

// Says so where a promise is not held.
inline bool holds(bool promise, const std::string& text) {
    if (!promise) fmt::print("not as promised: {}\n", text);
    return promise;
}

inline double share(size_t part, size_t all) {
    return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

} // namespace speedbump::simulated
