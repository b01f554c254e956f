// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace speedbump::stacks {

// The paths of functions, outermost first, that were seen as stacks, and which of them certainly
// are stacks of the program.
class CallPaths {
  public:
    static constexpr uint32_t kRoot = 0;

    // The path that goes on from `path` with this function.
    uint32_t step(uint32_t path, uint32_t function) {
        const uint64_t key = uint64_t{path} << 32 | function;
        const auto [entry, is_new] = steps_.try_emplace(key, static_cast<uint32_t>(nodes_.size()));
        if (is_new) nodes_.push_back({path, false});
        return entry->second;
    }
    bool is_proven(uint32_t path) const { return nodes_[path].proven; }
    // The beginnings of a stack were stacks too, when their last function was called.
    void prove(uint32_t path) {
        for (; !nodes_[path].proven; path = nodes_[path].parent) nodes_[path].proven = true;
    }
    size_t size() const { return nodes_.size(); }

  private:
    struct Node {
        uint32_t parent;
        bool proven;
    };
    std::unordered_map<uint64_t, uint32_t> steps_;
    std::vector<Node> nodes_{{kRoot, true}};
};

} // namespace speedbump::stacks
