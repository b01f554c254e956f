// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

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
    // A schedule that begins anew. False where a point can't be told by slice.
    bool begin(uint64_t start_ns, nanoseconds slice);
    // What the slice that is next has counted, which is over.
    SliceReading take();

  private:
    bool is_shared() const;
    bool set_targets();
    bool begin_points();

    session::Session& session_;
    const std::vector<std::unique_ptr<ProgressPoint>>& points_;
    std::vector<Members> targets_;
    TargetProgress progress_;
    std::map<size_t, size_t> progress_columns_; // of points that are targets
    // What the hits of each target took that had no delay: what one with a delay took beyond that
    // is what its call was slowed by.
    struct Undelayed {
        double ns = 0, hits = 0;
        double each() const { return hits > 0 ? ns / hits : 0; }
    };
    std::vector<Undelayed> undelayed_;
};

// How long after its end a slice is taken, where delays are this long: a hit whose thread has lost
// its CPU is counted that much later at most, or in a later slice.
nanoseconds settle_of(nanoseconds slice, nanoseconds longest_delay);

} // namespace speedbump::experiment
