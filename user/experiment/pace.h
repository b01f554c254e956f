// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "experiment/statistics.h"

// How long a unit of work takes, and how much longer than elsewhere. Pure functions.
namespace speedbump::experiment {

// Units of work, and the time in which they were counted; any unit of time.
struct Stretch {
    double units = 0;
    double time = 0;
};

// The whole time over all units. What delayed some of them is part of it: nothing is weighed down.
struct Pace {
    double period = 0;                                      // 0: no unit was counted
    double error = std::numeric_limits<double>::infinity(); // standard error of ln(period)
    double freedom = 0;
};

// The stretches are in the order of time. Their noise may hang together from one to the next.
Pace pace_of(std::span<const Stretch> stretches);

// How much longer a unit takes in b than in a, as a share of a (0.01: 1 %). Infinite where a pace
// is not known.
Estimate change_apart(const Pace& a, const Pace& b); // measured at different times
// a[i] and b[i] at the same moments: what slowed both of them alike is no noise. Both must have as
// many stretches. `unlike`: ln of how much longer b's units may have taken for a reason that is
// none of the two, all the time, so that no stretch tells of it; the interval holds the change with
// that and without, and p is the larger one.
Estimate change_side_by_side(std::span<const Stretch> a, std::span<const Stretch> b,
                             double unlike = 0);

// The same, with an interval and a p that hold at every look together, one after each of `blocks`
// equal parts so far (anytime.h).
Estimate change_at_any_look(std::span<const Stretch> a, std::span<const Stretch> b, size_t blocks,
                            double unlike = 0);

// How a service that is waited for settles, of short stretches of time.
class SettlingPace {
  public:
    // In which so many units ended; one of none belongs to the next.
    void add(double time, uint64_t units);
    bool has_ticked() const { return !stretches_.empty() || now_.units > 0; }
    bool has_stretch() const { return !stretches_.empty(); } // units enough to tell something
    bool is_steady() const;                                  // of late
    // Where it is steady, of late; else of all. It has ticked.
    double period() const;

  private:
    std::span<const Stretch> of_late() const;

    Stretch now_; // that has too few units to tell
    std::vector<Stretch> stretches_;
};

// By how much so many units in a time are too few, as a share, against their period without delay;
// nullopt while that is within `max_slowdown`, or may be chance. Times in ns.
std::optional<double> slowdown_beyond(double max_slowdown, double time, uint64_t units,
                                      double period);

// The same of a total that is looked at again and again: since the look before, and since one of up
// to 1 s or 100 units ago, as a slow service has too few units between two looks.
class SlowdownWatch {
  public:
    std::optional<double> look(uint64_t at_ns, uint64_t units, double max_slowdown, double period);

  private:
    struct Look {
        uint64_t at_ns = 0;
        uint64_t units = 0;
    };
    std::optional<Look> last_, since_;
};

// How long to look without delays at whether they were what slowed a service: a slow one has few
// units to tell it by. `period` of its units, in ns.
std::chrono::nanoseconds time_of_check(double period);

// A host that has other work slows for a moment, too: so many strikes of a guard within so long, it
// is the delays.
class Strikes {
  public:
    // One at this moment (monotonic_ns()): whether there are too many.
    bool add(uint64_t now_ns, double period);
    void clear() { strikes_.clear(); }

  private:
    std::vector<uint64_t> strikes_;
};

} // namespace speedbump::experiment
