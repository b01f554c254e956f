// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace speedbump::elf {

// Finds the last of some numbers before a place that is above a bound, in O(log n) whatever they
// are: of functions by address, whose ends a hostile file chooses, the innermost around a place.
class LastAbove {
  public:
    LastAbove() = default;
    explicit LastAbove(std::vector<uint64_t> numbers)
        : numbers_(std::move(numbers)), width_(std::bit_ceil(numbers_.size() / kBlock + 1)) {
        max_.resize(2 * width_);
        for (size_t i = 0; i < numbers_.size(); ++i) {
            uint64_t& max = max_[width_ + i / kBlock];
            max = std::max(max, numbers_[i]);
        }
        for (size_t node = width_ - 1; node > 0; --node)
            max_[node] = std::max(max_[2 * node], max_[2 * node + 1]);
    }

    // The largest index below `end`, which is at most their count, of a number above `bound`.
    std::optional<size_t> find(size_t end, uint64_t bound) const {
        if (const auto near = find_between(end / kBlock * kBlock, end, bound)) return near;
        // Up to the first subtree on the left that has one, and down to the last block in it.
        size_t node = width_ + end / kBlock;
        while (node > 1 && (node % 2 == 0 || max_[node - 1] <= bound)) node /= 2;
        if (node <= 1) return std::nullopt;
        for (--node; node < width_;) node = max_[2 * node + 1] > bound ? 2 * node + 1 : 2 * node;
        const size_t begin = (node - width_) * kBlock;
        return find_between(begin, begin + kBlock, bound);
    }

  private:
    static constexpr size_t kBlock = 16; // numbers for each leaf of the tree

    std::optional<size_t> find_between(size_t begin, size_t end, uint64_t bound) const {
        for (size_t i = end; i-- > begin;)
            if (numbers_[i] > bound) return i;
        return std::nullopt;
    }

    std::vector<uint64_t> numbers_;
    size_t width_ = 1;          // leaves
    std::vector<uint64_t> max_; // a binary tree in an array: node N has 2N and 2N+1 below it
};

} // namespace speedbump::elf
