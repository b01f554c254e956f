// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace speedbump::sites {

// splitmix64: the same cases for the same seed everywhere.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next() {
        uint64_t z = (state_ += 0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
    uint64_t below(uint64_t limit) { return next() % limit; }
    bool one_in(uint64_t count) { return below(count) == 0; }
    void fill(void* to, size_t size) {
        auto* bytes = static_cast<uint8_t*>(to);
        for (size_t at = 0; at < size; at += 8) {
            const uint64_t value = next();
            std::memcpy(bytes + at, &value, size - at < 8 ? size - at : 8);
        }
    }

  private:
    uint64_t state_;
};

} // namespace speedbump::sites
