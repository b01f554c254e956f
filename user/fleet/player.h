// SPDX-License-Identifier: MIT
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "experiment/columns.h"
#include "fleet/protocol.h"
#include "session/session.h"
#include "util/result.h"

namespace speedbump::fleet {

// This host's monotonic clock, as its coordinator knows it: SPEEDBUMP_TEST_CLOCK_AHEAD, in ns,
// moves it in tests, for hosts that are network namespaces have one clock; by
// SPEEDBUMP_TEST_CLOCK_JUMP more from SPEEDBUMP_TEST_CLOCK_JUMPS_AFTER it was first read on.
uint64_t agent_clock_ns();
// A time of the agent's clock as monotonic_ns() shows it, and back.
uint64_t to_monotonic(uint64_t agent_ns);
uint64_t to_agent(uint64_t monotonic);

// Plays the schedule that a coordinator sends on the session of this host: writes it ahead, never
// by more than a second after the coordinator was heard last, so that delays end where the link
// does; and tells what was counted in each slice. Not thread-safe.
class Player {
  public:
    // All outlive it. `tell` takes what is to be reported.
    Player(session::Session& session, experiment::Columns& columns,
           std::function<void(const Report&)> tell)
        : session_(session), columns_(columns), tell_(std::move(tell)) {}

    void begin(const Begin& begin);
    // Rows of another epoch, or not the next ones, are nobody's.
    void add(Rows rows);
    // No delay from now on. What was not told yet is lost.
    void end();
    // When the coordinator was heard last (monotonic_ns()).
    void heard_at(uint64_t time_ns) { heard_ns_ = time_ns; }
    // To be called often: by every quarter of the session's ring. kTimeout where this program gets
    // no CPU in time to write slices ahead, again and again.
    Result<void> catch_up();

    bool is_on() const { return epoch_.has_value(); }
    const Begin& epoch() const { return *epoch_; }

  private:
    void take_in();
    Result<void> write_ahead();
    bool start_again();
    uint64_t start_of(uint64_t slice) const;
    void note_late(uint64_t first, uint64_t count);

    session::Session& session_;
    experiment::Columns& columns_;
    std::function<void(const Report&)> tell_;
    std::optional<Begin> epoch_;
    std::deque<std::vector<nanoseconds>> rows_; // that are not written yet
    uint64_t next_ = 0;                         // slice that the first of them is of
    bool runs_ = false;                         // the session's schedule
    uint64_t base_ = 0;                         // slice that its first is
    std::optional<uint64_t> late_;              // of its slices, written too late
    experiment::Starts starts_;
    uint64_t heard_ns_ = 0;
};

} // namespace speedbump::fleet
