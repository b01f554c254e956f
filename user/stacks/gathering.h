// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <vector>

#include "stacks/source.h"

namespace speedbump::stacks {

inline size_t bytes_of(std::span<const Piece> pieces) {
    size_t size = 0;
    for (const Piece& one : pieces) size += one.iov_len;
    return size;
}

// Pieces of the target that are read in one system call, into memory that is used again.
class Gathering {
  public:
    // The source must outlive it.
    explicit Gathering(const Source& source) : source_(source) {}

    // Empties `wanted`, to be filled again.
    std::vector<Piece>& begin() {
        wanted_.clear();
        return wanted_;
    }
    // Whether all of them could be read: they lie at data(), one after the other.
    bool run() {
        const size_t size = bytes_of(wanted_);
        if (bytes_.size() < size) bytes_.resize(size);
        const ssize_t got = source_.gather(wanted_, bytes_.data());
        is_gone_ = got < 0;
        return got == static_cast<ssize_t>(size);
    }
    const char* data() const { return bytes_.data(); }
    // The last time nothing at all could be read of the process.
    bool is_gone() const { return is_gone_; }

  private:
    const Source& source_;
    std::vector<Piece> wanted_;
    std::vector<char> bytes_;
    bool is_gone_ = false;
};

} // namespace speedbump::stacks
