// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "fleet/combine.h"
#include "fleet/hosts.h"

namespace speedbump::fleet {

// What one slice is to be.
struct Draw {
    std::vector<Step> steps;                     // of each of the document's targets
    std::vector<std::vector<nanoseconds>> doses; // of each host, of each function
};

// One schedule on all hosts, each by its own clock: sent ahead, collected when it is over. It is
// begun anew, as an epoch, where the clocks have drifted, or this program came too late. Slices
// are numbered on over epochs. Not thread-safe.
class Epochs {
  public:
    // The hosts outlive it. `points`: of the experiment.
    Epochs(Hosts& hosts, nanoseconds slice, size_t points);

    // What a slice is, by its number and which hosts are part of it.
    using Drawer = std::function<Draw(uint64_t slice, const std::vector<bool>& in)>;
    void draw_by(Drawer drawer) { drawer_ = std::move(drawer); }
    // Told of each slice once, in their order; nullptr where a host that was part of it did not
    // tell of it. It must not begin or end.
    void finish_by(std::function<void(uint64_t slice, const FleetSlice*)> finish) {
        finish_ = std::move(finish);
    }
    // Of the first progress point of each host; for its guard.
    void set_periods(std::vector<nanoseconds> periods) { periods_ = std::move(periods); }

    void begin();
    // No delay from now on, as soon as they hear of it. What was not told yet is drawn again.
    void end();
    // Writes ahead, and tells what is finished. To be called all the time.
    void tick();

    // What the hosts tell of slices, and when one has come or gone.
    void take(size_t host, Taken taken);
    void note_late(size_t host, const Late& late);
    void note_change(size_t host);

    uint64_t written() const { return written_; }
    uint64_t epoch() const { return epoch_; }
    // Forgets what was lost, and how far apart hosts began, so far.
    void count_anew();
    const std::vector<uint64_t>& lost() const { return lost_; } // slices, by host
    // How far apart the hosts have begun each slice, in ns.
    const std::vector<uint64_t>& apart() const { return apart_; }

  private:
    enum class Fate : uint8_t { kNotAsked, kAsked, kTold, kLost };
    struct Pending {
        FleetSlice slice;
        std::vector<Fate> fates;
        std::vector<int64_t> shifts; // by which each host began it late
    };
    struct Part { // of a host, in this epoch
        bool is_in = false;
        int64_t ahead = 0; // of its clock, as the schedule has it
    };
    uint64_t start_of(uint64_t slice) const;
    void let_in();
    bool has_drifted() const;
    void write_ahead();
    void finish_those_that_are();
    void finish(uint64_t slice, const Pending& pending);
    Pending* pending_of(uint64_t slice);

    Hosts& hosts_;
    nanoseconds slice_;
    size_t points_;
    Drawer drawer_;
    std::function<void(uint64_t, const FleetSlice*)> finish_;
    std::vector<nanoseconds> periods_;
    bool is_on_ = false;
    uint64_t epoch_ = 0;
    uint64_t first_ = 0, start_ns_ = 0; // of the epoch
    uint64_t written_ = 0;              // slices
    std::deque<Pending> pending_;       // the last ones that were written
    std::vector<Part> parts_;
    std::vector<uint64_t> lost_;
    std::vector<uint64_t> apart_;
};

} // namespace speedbump::fleet
