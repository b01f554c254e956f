// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "experiment/injected_time.h"
#include "experiment/progress.h"
#include "experiment/slice_reading.h"
#include "session/session.h"
#include "util/result.h"

namespace speedbump::experiment {

// Of a full dose: a sixteenth of it, which is the smallest one, is as long as a look at the clock.
inline constexpr nanoseconds kLeastDose{500};

// The targets and progress points of a session in the columns of its schedule, and what is counted
// in them. Not thread-safe.
class Columns {
  public:
    // `progress`: points that are targets of the session, none of those of `targets` or just those
    // of one. The other points must be such as tell of slices. The session and the points outlive
    // this.
    Columns(session::Session& session, const std::vector<std::unique_ptr<ProgressPoint>>& points,
            std::vector<Members> targets, TargetProgress progress);
    // Ends its delays, and gives the targets their own back.
    ~Columns();
    Columns(const Columns&) = delete;
    Columns& operator=(const Columns&) = delete;

    // kUnsupported where the session or a point can't do it, kUsage where a point is a part of a
    // target.
    Result<void> set();
    // Ends the schedule; what was not taken is nobody's. It goes over all that is counted in, so
    // the start of the next one is chosen afterwards.
    void clear();
    // A schedule that begins anew, after clear().
    void begin(uint64_t start_ns, nanoseconds slice);
    // What the slice that is next has counted, which is over.
    SliceReading take();

  private:
    bool is_shared() const;
    bool set_targets();
    bool clear_points();

    session::Session& session_;
    const std::vector<std::unique_ptr<ProgressPoint>>& points_;
    std::vector<Members> targets_;
    TargetProgress progress_;
    std::map<size_t, size_t> progress_columns_; // of points that are targets
    std::vector<InjectedTime> injected_;        // of each target
    nanoseconds slice_{0};
};

// Whether schedules come to begin at all.
class Starts {
  public:
    // Of one that was to begin: whether its first slice was written in time. kTimeout where none
    // was for so many in a row that this program gets no CPU in time.
    Result<void> note(bool is_in_time);

  private:
    int vain_ = 0; // in a row
};

// How long after its end a slice is taken, where delays are this long: a hit whose thread has lost
// its CPU is counted that much later at most, or in a later slice.
nanoseconds settle_of(nanoseconds slice, nanoseconds longest_delay);

} // namespace speedbump::experiment
