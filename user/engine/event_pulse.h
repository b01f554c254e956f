// SPDX-License-Identifier: MIT
#pragma once

#include <linux/perf_event.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>

#include "util/clock.h"

namespace speedbump::engine {

// How often the events of all CPUs are looked at: each look interrupts each CPU.
constexpr auto kEventCheckPeriod = std::chrono::seconds(1);

// Tells whether the perf event of a CPU still runs. The kernel takes it off its CPU for good when
// that goes offline (hotplug, suspend), tells nobody, and does not put it back when the CPU
// returns: the list of online CPUs may look the same before and after. What shows is that the time
// for which the event has run stands still.
class EventPulse {
  public:
    static constexpr uint64_t kReadFormat = PERF_FORMAT_TOTAL_TIME_RUNNING; // for its attributes

    // The event was enabled just now.
    void begin() { seen_ = Clock::now(); }
    // Whether the enabled event `fd` has stopped; not before it has been still for half a second.
    bool has_stopped(int fd) {
        struct {
            uint64_t value, ran_ns;
        } now{};
        if (read(fd, &now, sizeof now) != sizeof now) return true; // in error, or of no CPU
        if (now.ran_ns != ran_ns_) {
            ran_ns_ = now.ran_ns;
            begin();
            return false;
        }
        return Clock::now() - seen_ >= std::chrono::milliseconds(500);
    }

  private:
    uint64_t ran_ns_ = 0;
    Clock::time_point seen_ = Clock::now();
};

} // namespace speedbump::engine
