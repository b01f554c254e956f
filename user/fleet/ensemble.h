// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiment/document.h"
#include "experiment/pace.h"
#include "experiment/runner.h"
#include "experiment/subject.h"
#include "fleet/epochs.h"
#include "fleet/gather.h"
#include "util/result.h"

namespace speedbump::fleet {

// The service on all hosts as one: tries doses on it, and measures what they do. What there is to
// tell goes into the document. Not thread-safe.
class Ensemble {
  public:
    // All outlive this. The hosts are attached.
    Ensemble(const FleetRequest& request, const experiment::Hooks& hooks, Hosts& hosts,
             experiment::Document& document);

    // Slices with the same doses in a row, as they were.
    struct Stretch {
        size_t slices = 0;
        double time = 0;                     // ns, of these slices
        double units = 0;                    // of the first progress point
        std::vector<double> calls, injected; // of each of the document's targets
        // Of the first progress point, of each host; the time of those that it was part of.
        std::vector<experiment::Stretch> hosts;
        double period() const { return time / units; }
        Stretch& operator+=(const Stretch& more);
    };

    // Until the pace is steady. kTimeout when nothing ticks.
    Result<void> warm_up();
    // What these delays of the document's targets do for so many seconds. nullopt when a guard
    // ended it, or all has come to an end.
    std::optional<Stretch> measure(const std::vector<nanoseconds>& doses, double seconds);
    // More of what is without delay, for so many seconds.
    void measure_plain(double seconds);
    // What is written from now on has no delay, nor is anybody waited for.
    void draw_none();
    // By what was measured without delay later: other load may have come or gone.
    void follow_periods(const Stretch& latest);
    // Deals with what the hosts tell; false once there is a reason to stop. Returns early where a
    // guard has tripped.
    bool turn(nanoseconds time);
    void warn(const std::string& text);

    // How the document's targets are told apart; with their doses.
    Plan plan() const;
    // Doses of the document's targets, by host and function.
    std::vector<std::vector<nanoseconds>> rows_of(const std::vector<nanoseconds>& doses) const;
    // Below this the delay of a call is lost in what a probe costs.
    nanoseconds least_dose(size_t target) const;

    std::optional<experiment::Stop>& stop() { return stop_; }
    // The guard of a host that has tripped, and why.
    std::optional<std::pair<size_t, std::string>>& tripped() { return tripped_; }
    Epochs& epochs() { return epochs_; }
    Hosts& hosts() { return hosts_; }
    size_t functions() const { return functions_; }
    // Of the first progress point without delay, in ns. Of one host: 0 where it has none of it.
    double period() const { return period_; }
    double period_of(size_t host) const { return host_periods_[host]; }
    // Without delay, since the beginning.
    const Stretch& plain() const { return plain_; }

  private:
    void prepare();
    void listen();
    void check_hosts();
    Stretch nothing() const;
    Stretch watch_plain(Combiner& combiner, nanoseconds time);
    bool is_known(size_t host, const experiment::SettlingPace& pace) const;
    void tell_periods();
    void add(Stretch& stretch, const FleetSlice& slice, Combiner& combiner) const;

    const FleetRequest& request_;
    const experiment::Hooks& hooks_;
    Hosts& hosts_;
    experiment::Document& document_;
    size_t functions_;
    Epochs epochs_;
    std::optional<experiment::Stop> stop_;
    std::optional<std::pair<size_t, std::string>> tripped_;
    Stretch plain_;
    double period_ = 0;
    std::vector<double> host_periods_;
    std::vector<bool> told_of_; // hosts that have ended
};

} // namespace speedbump::fleet
