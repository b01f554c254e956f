// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "abi.h"

namespace speedbump::engine {

using std::chrono::nanoseconds;

// What happened in one slice in the targets of one column. A hit counts for the slice that it came
// in, also when its delay ends later.
struct SliceCounts {
    uint64_t hits = 0;
    nanoseconds since{0}; // from the slice's beginning to each hit, all of them together
    uint64_t delays = 0;
    nanoseconds measured{0};  // of the hits with a delay
    nanoseconds undelayed{0}; // of the others
};

// The loader's end of one schedule (bpf/abi.h), in memory that the hooks of one engine read: which
// delay each column of targets has in each slice of time. Not thread-safe.
class Schedule {
  public:
    // A ring of counts (SB_RING_SLICES times columns); nullptr: it and all later ones are unused.
    using Ring = std::function<const sb_slice_counts*(size_t)>;
    // The memory is the caller's, and `doses` has a cell for each slice of the ring and column.
    Schedule(sb_schedule& shared, __u64* doses, uint32_t columns, size_t rings, Ring ring);
    Schedule(const Schedule&) = delete;
    Schedule& operator=(const Schedule&) = delete;

    // Ends it. What was not taken of it is nobody's: takes as long as there are rings to look at.
    void clear();
    // A new schedule without a slice yet, after clear(). `start_ns` is of the host's clock, in the
    // future. Touches no ring, and neither does add(): on a host of many CPUs that takes longer
    // than a start may lie ahead.
    void begin(uint64_t start_ns, nanoseconds slice);
    // The next slice: the delay of each column. Slices that are SB_RING_SLICES older must have been
    // taken.
    void add(std::span<const nanoseconds> doses);
    // No delay begins from now on.
    void end();
    // Adds what happened in a slice of this schedule, which is over, to what `sums` has by column.
    // Once for each slice, in their order. Hooks wrote the numbers: none is worth more than that.
    void take(uint64_t slice, std::span<SliceCounts> sums);

  private:
    sb_schedule& shared_;
    __u64* doses_;
    uint32_t columns_;
    uint64_t next_ = 0; // slice
    Ring ring_;
    std::vector<std::vector<sb_slice_counts>> taken_; // of each ring; empty: nothing yet
};

// Units of progress in one slice.
struct SliceProgress {
    uint64_t units = 0;
    nanoseconds since{0}; // from the slice's beginning to each unit, all of them together
};

// The counts of SB_RING_SLICES times `points`, by CPU, of a map of units by slice: those of one
// point and slice since it was last taken.
class SliceUnits {
  public:
    SliceUnits(const sb_slice_units* counts, size_t cpus, uint32_t points)
        : counts_(counts), points_(points), taken_(cpus * SB_RING_SLICES * points) {}
    // What was not taken yet is nobody's: before a new schedule begins.
    void clear();
    SliceProgress take(uint64_t slice, uint32_t point);

  private:
    const sb_slice_units* counts_;
    uint32_t points_;
    std::vector<sb_slice_units> taken_;
};

} // namespace speedbump::engine
