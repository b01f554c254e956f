// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace speedbump::fleet {

// How far another host's monotonic clock is ahead of this one's, in ns.
struct Offset {
    int64_t ahead = 0;
    uint64_t error = 0; // it is within so much of that, either way
};

// The offset by questions and answers. An answer was given between question and its arrival, so
// the shortest round trip tells most. Clocks drift apart: what was heard long ago tells less. Pure.
class ClockOffset {
  public:
    static constexpr size_t kKept = 1024;
    static constexpr size_t kFewest = 16;
    static constexpr double kDrift = 20e-6; // of two clocks, as they may drift apart

    // All in ns; `theirs` is the time there when it answered. What can't be (an answer before its
    // question, times that no clock shows) is left out. What was known before is forgotten where
    // the answer can't be of the same clock: it has jumped, and by how much is told.
    std::optional<int64_t> add(uint64_t asked, uint64_t theirs, uint64_t heard);
    // nullopt before the first answer.
    std::optional<Offset> best() const;
    size_t count() const { return trips_.size(); }
    // Whether there were enough answers, since it jumped, that one of them was quick.
    bool is_known() const { return trips_.size() >= kFewest; }

  private:
    struct Trip {
        uint64_t asked, theirs, heard;
    };
    std::deque<Trip> trips_;
};

} // namespace speedbump::fleet
