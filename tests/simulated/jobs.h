// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "experiment/model/regression.h"

// Bulk-synchronous jobs drawn at random: in each step each rank works, and waits for all others.
namespace speedbump::simulated {

class Job {
  public:
    explicit Job(uint64_t seed);
    // Of ranks that work for so long in each step, give or take the jitter; in ns.
    Job(std::vector<double> work, double jitter, uint64_t seed);

    size_t ranks() const { return work_.size(); }
    double step() const { return step_; } // its mean length, in ns
    // What a ns more of one rank costs a step, where each of its steps is longer by so much.
    double effect(size_t rank, double delay) const;
    // How much longer a rank may work until each ns more counts.
    double slack(size_t rank) const;

    // One rank slowed at a time, in turns, as a fleet does where each is slowed.
    experiment::SlicedRun measure(uint64_t seed, double slice_ns, size_t slices,
                                  const std::vector<double>& doses) const;

  private:
    double mean_step(size_t rank, double delay) const;

    std::vector<double> work_;   // of each rank in a step, in ns
    double jitter_ = 0;          // standard deviation of each, in ns
    double late_ = 0;            // how often a rank is late by more, a step
    double late_ns_ = 0;         // and by how much
    double slow_ = 0, fast_ = 0; // standard deviations of the hosts' speed, as of Host
    double steals_ = 0;          // a second, in which nothing runs
    double stolen_ns_ = 0;
    double step_ = 0;
    uint64_t seed_ = 0;
};

} // namespace speedbump::simulated
