// SPDX-License-Identifier: MIT
#include "experiment/progress.h"

#include <algorithm>

#include "experiment/device_point.h"
#include "experiment/progress_polls.h"
#include "experiment/progress_probes.h"
#include "experiment/progress_syscall.h"
#include "util/clock.h"

namespace speedbump::experiment {

namespace {

using Kind = ProgressSpec::Kind;

// Calls of native functions, and USDT marks.
class Calls : public ProgressPoint {
  public:
    Calls(std::shared_ptr<Programs> programs, uint32_t index, bool timed,
          std::unique_ptr<ProgressSites> sites)
        : programs_(programs),
          index_(index),
          timed_(timed),
          probes_(std::move(programs), index, std::move(sites)) {}

    Result<void> attach(const std::vector<pid_t>& pids) { return probes_.attach(pids); }

    Result<Reading> read(const Totals& /*totals*/) override {
        if (auto followed = probes_.follow(programs_->session().processes()); !followed)
            return std::move(followed).error();
        return Reading{programs_->sum(programs_->skeleton().maps.units, index_), monotonic_ns()};
    }

    bool clear_slices() override { return programs_->clear_slices(); }
    std::optional<engine::SliceProgress> take_slice(uint64_t slice) override {
        return programs_->take_slice(slice, index_);
    }

    std::vector<uint64_t> latencies() override {
        std::vector<uint64_t> calls;
        for (uint32_t bucket = 0; timed_ && bucket < SB_LATENCY_BUCKETS; ++bucket)
            calls.push_back(programs_->sum(programs_->skeleton().maps.latencies,
                                           index_ * SB_LATENCY_BUCKETS + bucket));
        return calls;
    }

    uint64_t lost() override { return timed_ ? programs_->lost_calls() : 0; }

  private:
    std::shared_ptr<Programs> programs_;
    uint32_t index_;
    bool timed_;
    ProgressProbes probes_; // after the programs, so that they go first
};

// Calls of targets of the session.
class TargetCalls : public ProgressPoint {
  public:
    explicit TargetCalls(Members members) : members_(std::move(members)) {}

    Result<Reading> read(const Totals& totals) override {
        Reading reading{0, totals.at_ns};
        for (const uint32_t member : members_) {
            if (member >= totals.targets.size())
                return make_error(ErrorKind::kIo, "the calls cannot be counted");
            reading.units += totals.targets[member].hits;
        }
        return reading;
    }

  private:
    const Members members_;
};

Result<std::unique_ptr<ProgressPoint>> open_counter(const ProgressSpec& spec,
                                                    std::shared_ptr<Programs> programs,
                                                    uint32_t index,
                                                    const std::vector<pid_t>& pids) {
    const elf::SiteOptions options = engine::site_options(programs->features());
    auto sites = spec.kind == Kind::kUsdt
                     ? Result<std::unique_ptr<ProgressSites>>(mark_sites(spec, options))
                     : function_sites(spec, options);
    if (!sites) return std::move(sites).error();
    auto calls = std::make_unique<Calls>(std::move(programs), index, spec.kind == Kind::kLatency,
                                         std::move(*sites));
    if (auto attached = calls->attach(pids); !attached) return std::move(attached).error();
    return std::unique_ptr<ProgressPoint>(std::move(calls));
}

} // namespace

Result<std::vector<std::unique_ptr<ProgressPoint>>> open_progress(
    const std::vector<ProgressSpec>& specs, const TargetProgress& targets,
    session::Session& session, const std::function<void(const std::string&)>& warn) {
    if (specs.size() > SB_MAX_PROGRESS)
        return make_error(ErrorKind::kUsage,
                          "more than " + std::to_string(SB_MAX_PROGRESS) + " progress points");
    std::vector<pid_t> pids;
    for (const session::ProcessInfo& process : session.snapshot().processes)
        if (process.alive) pids.push_back(process.pid);
    const bool has_device = std::any_of(specs.begin(), specs.end(), [](const ProgressSpec& spec) {
        return spec.kind == Kind::kDevice;
    });
    std::vector<std::unique_ptr<ProgressPoint>> points;
    std::shared_ptr<Programs> programs;
    for (uint32_t index = 0; index < specs.size(); ++index) {
        const ProgressSpec& spec = specs[index];
        if (const auto own = targets.find(index); own != targets.end()) {
            points.push_back(std::make_unique<TargetCalls>(own->second));
            continue;
        }
        Result<std::unique_ptr<ProgressPoint>> opened = std::unique_ptr<ProgressPoint>();
        switch (spec.kind) {
            case Kind::kSyscall:
                opened = open_syscall(spec.first, session, warn);
                break;
            case Kind::kCommand:
                opened = open_command(spec);
                break;
            case Kind::kFile:
                opened = open_file(spec);
                break;
            case Kind::kHttp:
                opened = open_http(spec);
                break;
            default:
                if (!programs) {
                    auto loaded =
                        Programs::load(session, static_cast<uint32_t>(specs.size()), has_device);
                    if (!loaded)
                        return std::move(loaded).error().with_context("progress point " +
                                                                      spec.text);
                    programs = std::move(*loaded);
                }
                opened = spec.kind == Kind::kDevice ? open_device(spec, programs, index, pids)
                                                    : open_counter(spec, programs, index, pids);
        }
        if (!opened) return std::move(opened).error().with_context("progress point " + spec.text);
        points.push_back(std::move(*opened));
    }
    return points;
}

DeviceReading device_between(const DeviceReading& before, const DeviceReading& after) {
    DeviceReading reading;
    reading.launches = after.launches - before.launches;
    reading.waits = after.waits - before.waits;
    reading.gaps = after.gaps - before.gaps;
    reading.most_queued = after.most_queued;
    reading.wait = after.wait - before.wait;
    reading.launching = after.launching - before.launching;
    reading.held = after.held - before.held;
    reading.unsure = after.unsure - before.unsure;
    reading.watched = after.watched - before.watched;
    reading.idle = after.idle - before.idle;
    reading.busy = after.busy - before.busy;
    return reading;
}

std::optional<Latency> latency_between(const std::vector<uint64_t>& before,
                                       const std::vector<uint64_t>& after) {
    uint64_t total = 0;
    std::vector<uint64_t> calls;
    for (size_t bucket = 0; bucket < after.size(); ++bucket) {
        calls.push_back(after[bucket] - before.at(bucket));
        total += calls.back();
    }
    if (total == 0) return std::nullopt;
    const auto percentile = [&](double share) {
        const double wanted = share * static_cast<double>(total);
        uint64_t sum = 0;
        for (uint32_t bucket = 0; bucket < calls.size(); ++bucket) {
            sum += calls[bucket];
            if (static_cast<double>(sum) >= wanted)
                return nanoseconds(static_cast<int64_t>(latency_of_bucket(bucket)));
        }
        return nanoseconds(0);
    };
    return Latency{percentile(0.5), percentile(0.9), percentile(0.99)};
}

} // namespace speedbump::experiment
