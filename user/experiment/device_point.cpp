// SPDX-License-Identifier: MIT
#include "experiment/device_point.h"

#include <deque>
#include <set>

#include "experiment/device_queue.h"
#include "experiment/device_spec.h"
#include "experiment/progress_probes.h"
#include "util/clock.h"

namespace speedbump::experiment {

namespace {

class Device : public ProgressPoint {
  public:
    Device(std::shared_ptr<Programs> programs, uint32_t index, std::unique_ptr<ProgressSites> sites)
        : programs_(std::move(programs)),
          index_(index),
          probes_(programs_, index, std::move(sites)) {}

    Result<void> attach(const std::vector<pid_t>& pids) { return probes_.attach(pids); }

    Result<Reading> read(const Totals& /*totals*/) override {
        const auto processes = programs_->session().snapshot().processes;
        if (auto followed = probes_.follow(processes); !followed)
            return std::move(followed).error();
        const Reading reading{programs_->sum(programs_->skeleton().maps.units, index_),
                              monotonic_ns()};
        catch_up(processes);
        return reading;
    }

    bool clear_slices() override { return programs_->clear_slices(); }
    std::optional<engine::SliceProgress> take_slice(uint64_t slice) override {
        return programs_->take_slice(slice, index_);
    }
    uint64_t lost() override { return programs_->lost_calls(); }
    std::optional<DeviceReading> device() override { return totals_; }

  private:
    void catch_up(const std::vector<session::ProcessInfo>& processes) {
        const uint64_t lost = programs_->lost_device_events();
        // This thread may lose its CPU anywhere here; what happens meanwhile is of the next
        // reading.
        const uint64_t now = monotonic_ns();
        for (const sb_device_event& event : programs_->take_device_events(index_))
            events_.push_back(event);
        for (; !events_.empty() && events_.front().at_ns <= now; events_.pop_front())
            queues_.take(events_.front());
        // Where in between they were lost is not known.
        if (lost != std::exchange(lost_, lost)) queues_.forget_all(now);
        std::set<uint32_t> alive;
        for (const session::ProcessInfo& process : processes)
            if (process.alive) alive.insert(static_cast<uint32_t>(process.pid));
        queues_.keep_only(alive, now);
        totals_ = queues_.totals(now);
    }

    std::shared_ptr<Programs> programs_;
    uint32_t index_;
    ProgressProbes probes_;              // after the programs, so that they go first
    std::deque<sb_device_event> events_; // later than the last reading
    DeviceQueues queues_;
    DeviceReading totals_; // at the last reading
    uint64_t lost_ = 0;
};

} // namespace

Result<std::unique_ptr<ProgressPoint>> open_device(const ProgressSpec& spec,
                                                   std::shared_ptr<Programs> programs,
                                                   uint32_t index, const std::vector<pid_t>& pids) {
    const auto device = parse_device(spec.first);
    if (!device) return device.error();
    auto sites = device_sites(*device, engine::site_options(programs->features()));
    if (!sites) return std::move(sites).error();
    const ProgressSites& known = **sites;
    auto point = std::make_unique<Device>(std::move(programs), index, std::move(*sites));
    if (auto attached = point->attach(pids); !attached) return std::move(attached).error();
    if (const auto refusal = known.refusal()) return *refusal;
    return std::unique_ptr<ProgressPoint>(std::move(point));
}

} // namespace speedbump::experiment
