// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "elf/image.h"

namespace speedbump::elf {

using Bytes = std::basic_string_view<unsigned char>;

// The bytes of the file's data, block by block: neither kept nor mapped. Asked in ascending order
// it reads each block once.
class DataReader {
  public:
    DataReader(const ElfFile& file, size_t block) : file_(file), block_size_(block) {}

    // What is at hand from `address` on: `size` bytes at least, fewer where the data ends.
    Bytes from(uint64_t address, uint64_t size) {
        if (address < start_ || address - start_ + size > block_.size()) load(address);
        if (address < start_ || address - start_ > block_.size()) return {};
        return Bytes(block_.data(), block_.size()).substr(address - start_);
    }

  private:
    void load(uint64_t address) {
        block_.clear();
        for (const Segment& segment : file_.segments()) {
            if (address < segment.address || address - segment.address >= segment.file_size)
                continue;
            uint64_t within = address - segment.address;
            size_t size = std::min<uint64_t>(block_size_, segment.file_size - within);
            auto bytes = file_.read(segment.offset + within, size);
            if (!bytes) return;
            block_ = std::move(*bytes);
            start_ = address;
            return;
        }
    }

    const ElfFile& file_;
    size_t block_size_;
    std::vector<unsigned char> block_;
    uint64_t start_ = 0;
};

} // namespace speedbump::elf
