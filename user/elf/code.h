// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "elf/image.h"
#include "elf/pages.h"

namespace speedbump::elf {

// The executable segments of a file in memory. Holes of the file take none.
class Code {
  public:
    Code() = default;
    explicit Code(const Image& image);

    // As ElfFile::code_at().
    std::basic_string_view<unsigned char> at(uint64_t offset, size_t size) const;
    // As ElfFile::data_in(), of what at() gives; empty: of no segment that was read.
    std::vector<Extent> data_in(const Segment& segment) const;
    // Whether a segment was left out because of its size, or for want of address space.
    bool is_too_large() const { return is_too_large_; }

  private:
    struct Part {
        Segment segment;
        std::vector<Extent> data; // of the file
        ZeroPages bytes;
    };
    std::vector<Part> parts_;
    bool is_too_large_ = false;
};

// What of a segment to look at to see all that is not zero: extents of the file as offsets within
// the segment, with the zeros around them that belong to an instruction or a pointer across an
// edge; ascending, and begin and end at multiples of 64 (but for the end of the segment).
std::vector<Extent> widened(const std::vector<Extent>& data, const Segment& segment);

} // namespace speedbump::elf
