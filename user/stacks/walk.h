// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "process/source.h"
#include "python_walk.h"

namespace speedbump::stacks {

using process::piece;
using process::Source;

// What bpf/python_walk.h reads from outside of a process, each piece in one system call and once:
// for memory that stays as it is while one walk lasts. The source must outlive it.
class WalkReader {
  public:
    explicit WalkReader(const Source& source) : source_(source) {}

    void ahead(uint64_t address, size_t size) {
        if (known_.size() >= kMaxKnown) known_.clear();
        const auto [entry, is_new] = known_.try_emplace(address);
        std::string& bytes = entry->second;
        if (is_new) {
            bytes.resize(size);
            if (!source_.read(address, bytes.data(), size)) bytes.clear();
        }
        near_ = &bytes;
        near_address_ = address;
    }

    int read(void* to, size_t size, uint64_t address) const {
        const uint64_t offset = address - near_address_;
        if (near_ == nullptr || near_->size() < size || offset > near_->size() - size)
            return source_.read(address, to, size) ? 0 : -1;
        std::memcpy(to, near_->data() + offset, size);
        return 0;
    }

  private:
    static constexpr size_t kMaxKnown = 4096;

    const Source& source_;
    std::unordered_map<uint64_t, std::string> known_; // by address; empty: not all of it is there
    const std::string* near_ = nullptr;               // what is read now, of these
    uint64_t near_address_ = 0;
};

// More are taken for a circle.
inline constexpr size_t kMaxFrames = 1 << 16;

// A frame whose bytes are here, as one at address 0.
struct CopiedFrame {
    const char* bytes;

    int read(void* to, size_t size, uint64_t offset) const {
        std::memcpy(to, bytes + offset, size);
        return 0;
    }
};

} // namespace speedbump::stacks
