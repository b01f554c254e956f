// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "stacks/layout.h"
#include "stacks/source.h"
#include "stacks/walk.h"

namespace speedbump::stacks {

// A frame as it was read.
struct RawFrame {
    sb_python_frame frame{}; // without address and identity
    __u64 previous = 0;
    size_t offset = 0; // of its bytes in the copy of the regions
};

RawFrame parse_frame(const Layout& layout, const char* bytes);

// The parts of the target's memory that hold a thread's frames: each is read as a whole with each
// sample, so that a stack is a few pieces.
class FrameRegions {
  public:
    uint64_t bytes() const { return bytes_; } // of all of them
    bool empty() const { return regions_.empty(); }
    void clear();
    void add_pieces(std::vector<Piece>& wanted) const;
    // Follows the frames through a copy of the regions. False: the frame at `missing` lies in none
    // of them (0: they form a circle).
    bool parse(const Layout& layout, uint64_t innermost, const char* copy,
               std::vector<RawFrame>& frames, uint64_t* missing);
    // Looks for the frames from `address` on, to be read with the next try.
    void find(const Source& source, const Layout& layout, uint64_t address);
    // After a stack of `frames` frames was read: those that are long gone need not be read for
    // ever.
    void drop_waste(const Layout& layout, size_t frames);

  private:
    struct Region {
        uint64_t low = 0;
        uint64_t size = 0;
        uint64_t offset = 0;  // where it lies among the bytes of all regions
        uint64_t used_in = 0; // the turn in which a frame lay in it
    };

    std::optional<uint64_t> locate(uint64_t address, uint64_t size, size_t& hint);
    void cover(uint64_t address, uint64_t size);
    void place();

    std::vector<Region> regions_;
    uint64_t bytes_ = 0;
    unsigned wasteful_ = 0; // samples in a row that read much more than needed
    uint64_t turn_ = 0;     // samples so far
};

} // namespace speedbump::stacks
