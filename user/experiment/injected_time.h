// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace speedbump::experiment {

// By how much the delays of one target have slowed its calls, slice after slice: what hits with a
// delay took beyond what those without one take (decision 12). Pure.
class InjectedTime {
  public:
    // Of one slice; times in ns.
    struct Hits {
        uint64_t hits = 0;
        uint64_t delays = 0;
        double measured = 0;  // of those with a delay
        double undelayed = 0; // of the others
    };
    // The next slice, of so many ns, of which all CPUs of the host together have `host`: in ns.
    uint64_t add(const Hits& seen, double slice, double host);

  private:
    double undelayed_ = 0, hits_ = 0; // of those without a delay
    double below_ = 0;                // what is to be taken off the next slices
};

} // namespace speedbump::experiment
