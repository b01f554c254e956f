// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "experiment/model/regression.h"

// Services with a structure and parameters drawn at random, whose answer to a delay is known.
namespace speedbump::simulated {

// What a service's code asks when it comes to a target, and tells when a unit is done. Times are in
// ns since it began.
class Clockwork {
  public:
    virtual ~Clockwork() = default;
    // Work of this length that begins now, and when it ends: hosts are slower at times.
    virtual double work(double now, double length) = 0;
    // `calls` of a target begin now: when they end.
    virtual double call(size_t target, double now, double calls) = 0;
    virtual void done(double now) = 0;
};

class Service {
  public:
    virtual ~Service() = default;
    virtual std::string kind() const = 0;
    virtual size_t targets() const = 0;
    virtual double calls_per_unit(size_t target) const = 0;
    // Runs until `end`, in the same way each time but for what the clockwork does.
    virtual void run(double end, Clockwork& clockwork) const = 0;
};

std::unique_ptr<Service> draw_service(uint64_t seed);

// The host that it runs on, and how it is measured.
struct Host {
    double slow = 0.02; // standard deviation of its speed, over seconds
    double fast = 0.01; // and from slice to slice
    double steals = 2;  // a second, in which nothing runs
    double stolen_ns = 3e6;
    double call_error_ns = 0; // what a delayed call costs beside what is measured
};
Host draw_host(uint64_t seed);

struct Measurement {
    experiment::SlicedRun run;
    std::vector<double> dose_ns; // full, per call
};

// The targets of `delayed` at once for that many slices. Doses make each target's injected time
// that share of the unit's period.
Measurement measure(const Service& service, const Host& host, uint64_t seed, double slice_ns,
                    size_t slices, double share, const std::vector<size_t>& delayed);

// A run with a steady delay of one target, or none, on a host that disturbs nothing.
class Steady {
  public:
    struct Unit {
        double at = 0;
        double injected = 0; // so far
    };
    explicit Steady(const Service& service, double seconds, size_t target = 0, double delay_ns = 0);
    double period() const; // ns per unit
    // By how much the same units came later for each ns injected more.
    double against(const Steady& other) const;

  private:
    std::vector<Unit> units_;
};

} // namespace speedbump::simulated
