// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/schedule.h"

namespace speedbump::engine {
struct Engines;
} // namespace speedbump::engine

namespace speedbump::session {

// Which delay each column of a session's targets has in each slice of time. It is the same in all
// engines, and the clock switches it. Slices are written ahead of time and taken when they are
// over; where none is written in time the schedule runs out, and delays end. Not thread-safe.
class Schedule {
  public:
    // What is written in advance at most, less what was not taken yet.
    static constexpr uint64_t kRing = SB_RING_SLICES;

    // Engines that were opened with so many columns, and outlive this.
    Schedule(engine::Engines& engines, uint32_t columns) : engines_(engines), columns_(columns) {}

    uint32_t columns() const { return columns_; }
    // Ends it; what was not taken is nobody's. This goes over all that hooks count in, so a start
    // is chosen afterwards.
    void clear();
    // A new one without a slice yet, after clear(). `start_ns` (monotonic_ns()) is in the future.
    // Both are to be called again when hooks have been opened anew.
    void begin(uint64_t start_ns, engine::nanoseconds slice);
    // How many slices can be written now.
    uint64_t room() const { return kRing - (end_ - taken_); }
    // The next slice, with the delay of each column. Only where there is room. False when it has
    // begun by now: what is counted in it is not all then.
    bool add(std::span<const engine::nanoseconds> doses);
    // No delay begins from now on.
    void end();

    uint64_t written() const { return end_; }
    uint64_t taken() const { return taken_; }
    // When a slice begins (monotonic_ns()).
    uint64_t start_of(uint64_t slice) const {
        return start_ns_ + slice * static_cast<uint64_t>(slice_.count());
    }
    // What happened in the next slice that was not taken yet, which must have been written and be
    // over, by column.
    std::vector<engine::SliceCounts> take();

  private:
    std::vector<engine::Schedule*> parts() const;

    engine::Engines& engines_;
    uint32_t columns_;
    uint64_t start_ns_ = 0;
    engine::nanoseconds slice_{0};
    uint64_t end_ = 0; // slices written
    uint64_t taken_ = 0;
};

} // namespace speedbump::session
