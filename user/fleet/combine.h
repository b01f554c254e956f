// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <vector>

#include "experiment/document.h"
#include "experiment/slice_reading.h"

// One table of the slices of many hosts. Pure.
namespace speedbump::fleet {

using experiment::SliceReading;
using experiment::Step;
using std::chrono::nanoseconds;

// How one progress point is made of the hosts'.
struct Combination {
    enum class Kind {
        kSum, // of all
        kMin, // the slowest: by what each has done so far
        kAt,  // that of one host
    } kind = Kind::kSum;
    size_t host = 0; // kAt
};

// One slice, of all hosts.
struct FleetSlice {
    std::vector<Step> steps; // of each of the document's targets
    // nullopt: the host was no part of it.
    std::vector<std::optional<SliceReading>> hosts;
};

// Whose slices these are.
struct Plan {
    nanoseconds slice{0};
    size_t functions = 0; // that each host was asked for
    bool each = false;    // as Fleet's; the document's targets are then each function on each host
    std::vector<Combination> progress;
    std::vector<nanoseconds> doses; // the full ones, of each of the document's targets

    size_t targets(size_t hosts) const { return each ? functions * hosts : functions; }
    // In the document.
    size_t target_of(size_t function, size_t host, size_t hosts) const {
        return each ? function * hosts + host : function;
    }
};

// The full dose's share at a level. Where one host is slowed at a time it is its slack that is
// asked for: beyond that two levels must lie, or how steep a hinge is can't be told from where it
// is. So the upper ones are nearer to each other than experiment::share_of() has them.
double share_of(bool each, size_t level);

// Units and injected time of each slice as the model takes them. Injected time is the mean over the
// hosts that were part of a slice where all are slowed together: a delay that all have costs what
// one of them has.
class Combiner {
  public:
    Combiner(Plan plan, size_t hosts);

    // The next slice. False when it is left out: no host is part of it, or not the one whose
    // progress counts.
    bool add(const FleetSlice& slice);

    const experiment::Sliced& sliced() const { return sliced_; }
    // Puts what each host has told into those of a fleet.
    void fill(std::vector<experiment::FleetHost>& hosts) const;

  private:
    bool has_progress(const FleetSlice& slice) const;
    SliceReading::Point point_of(size_t point, const FleetSlice& slice);
    SliceReading::Point grown_minimum(size_t point, const FleetSlice& slice);
    void add_targets(const FleetSlice& slice, size_t parts);

    // What one host has told, by slice.
    struct Told {
        std::vector<bool> told;
        std::vector<std::vector<uint64_t>> units, since_ns;
        std::vector<experiment::SlicedTarget> targets;
    };
    // kMin: what each host has done so far, and the least of that.
    struct Totals {
        std::vector<uint64_t> of;
        std::vector<bool> in; // which were part of the slice before
        uint64_t least = 0;
    };

    Plan plan_;
    experiment::Sliced sliced_;
    std::vector<Told> told_;
    size_t parts_ = 0;           // of all slices, the hosts that were part of each
    std::vector<Totals> totals_; // of each progress point
};

} // namespace speedbump::fleet
