// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "experiment/columns.h"
#include "experiment/document.h"
#include "session/session.h"
#include "util/clock.h"
#include "util/result.h"

namespace speedbump::experiment {

// One of the targets of a trial: targets of the session that are delayed alike.
struct TrialTarget {
    Members members;

    nanoseconds dose{0}; // the full one; 0: they are counted only
};

struct TrialPlan {
    uint64_t seed = 1;
    nanoseconds slice{0};
    double chance = kEvenChance; // of a dose, of each target in each slice
    uint8_t highest = kLevels;   // level; where a larger dose was drawn it is this one
    std::vector<TrialTarget> targets;
    // Progress points that are targets of the session: none of those of `targets`, or just those of
    // one. The other points must be such as tell of slices.
    TargetProgress progress{};

    // That the session must have been attached with.
    uint32_t columns() const { return static_cast<uint32_t>(targets.size() + progress.size()); }
};

// Many targets at once, each with its own random doses, in slices that the clock switches
// (decisions 12 and 13): keeps the session's schedule written ahead, and collects what happened in
// each slice. Not thread-safe.
class Trial {
  public:
    // The session, which is armed, and the points outlive it. Its end ends its delays, and gives
    // the targets their own back.
    Trial(session::Session& session, const std::vector<std::unique_ptr<ProgressPoint>>& points,
          TrialPlan plan);

    // kUnsupported where the session or a point can't do it. After end() it goes on with the slices
    // that come next.
    Result<void> begin();
    // Goes on for this time, or until `wake_fd` is readable; as Session::run_for() else. kTimeout
    // where this program gets no CPU in time to write slices ahead, again and again.
    Result<void> go_on(nanoseconds time, int wake_fd = -1);
    // Doses are at most of this level from now on. While it is ended.
    void limit(uint8_t highest);
    // No delay begins from now on. Slices that are over are taken in.
    void end();

    // So far, in whole slices. Where the schedule ran out its slices lie side by side all the same.
    const Sliced& measured() const { return measured_; }
    // How often this program came too late to go on writing.
    uint64_t gaps() const { return gaps_; }

  private:
    Result<void> begin_schedule();
    Result<void> catch_up();
    void write_ahead();
    void take_in();
    std::vector<nanoseconds> doses_of(uint64_t slice);
    const Step& step_of(size_t target, uint64_t slice);

    session::Session& session_;
    TrialPlan plan_;
    Columns columns_;
    Sliced measured_;
    nanoseconds settle_{0}; // what a hit may take to be counted
    uint64_t first_ = 0;    // slice of the trial that the schedule's first is
    std::vector<std::array<Step, kStageSlices>> stages_; // of each target, the one written last
    uint64_t stage_ = UINT64_MAX;                        // which that is
    std::deque<std::vector<Step>> written_;              // of slices that are not taken yet
    std::optional<uint64_t> late_; // slice of the schedule that was written too late
    bool is_on_ = false;
    Starts starts_;
    uint64_t gaps_ = 0;
};

} // namespace speedbump::experiment
