// SPDX-License-Identifier: MIT
#include "services.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <random>
#include <utility>

#include "experiment/model/parts.h"

namespace speedbump::simulated {

namespace {

constexpr double kMaxSlowdown = 0.5; // as --max-slowdown has it

uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

class Random {
  public:
    explicit Random(uint64_t seed) : engine_(mixed(seed)) {}
    double between(double low, double high) {
        return std::uniform_real_distribution<double>(low, high)(engine_);
    }
    double by_ratio(double low, double high) { return low * std::pow(high / low, between(0, 1)); }
    size_t count(size_t low, size_t high) {
        return std::uniform_int_distribution<size_t>(low, high)(engine_);
    }
    double normal() { return normal_(engine_); }
    double exponential() { return std::exponential_distribution<double>()(engine_); }

  private:
    std::mt19937_64 engine_;
    std::normal_distribution<double> normal_;
};

// A piece of code: its length, how much that varies, and the target in it.
struct Part {
    double length = 0;
    double spread = 0; // uniform, to either side, as a share
    size_t target = 0;
    double calls = 1;

    // The n-th time round.
    double length_at(uint64_t n) const {
        const double u = static_cast<double>(mixed(n * 1000003 + target) >> 11) * 0x1p-53;
        return length * (1 + spread * (2 * u - 1));
    }
    double run(double now, uint64_t n, Clockwork& clockwork) const {
        return clockwork.work(clockwork.call(target, now, calls), length_at(n));
    }
};

class PartsService : public Service {
  public:
    size_t targets() const override { return parts_.size(); }
    double calls_per_unit(size_t target) const override { return parts_[target].calls; }
    // On one thread, one after the other.
    void run(double end, Clockwork& clockwork) const override {
        double now = 0;
        for (uint64_t n = 0; now < end; ++n) {
            for (const Part& part : parts_) now = part.run(now, n, clockwork);
            clockwork.done(now);
        }
    }

  protected:
    PartsService(Random& random, size_t parts, double period) {
        const auto spread = static_cast<double>(random.count(0, 1)); // some are clockwork
        for (size_t target = 0; target < parts; ++target)
            parts_.push_back({period / static_cast<double>(parts) * random.between(0.5, 1.5),
                              spread * random.between(0, 0.4), target,
                              static_cast<double>(random.count(1, 3))});
    }
    std::vector<Part> parts_;
};

double draw_period(Random& random) {
    return random.by_ratio(40e3, 400e3);
}

// Where effects arrive at once: that of a request to that of a step on a device.
double draw_any_period(Random& random) {
    return random.by_ratio(40e3, 40e6);
}

// That, and nothing else.
class Serial : public PartsService {
  public:
    explicit Serial(Random& random)
        : PartsService(random, random.count(2, 5), draw_any_period(random)) {}
    std::string kind() const override { return "serial"; }
};

// A leaf that is called many times a unit, beside other work.
class HotLeaf : public PartsService {
  public:
    explicit HotLeaf(Random& random) : PartsService(random, 3, random.by_ratio(40e3, 1e6)) {
        for (size_t leaf = 0; leaf < 2; ++leaf)
            parts_[leaf].calls = std::floor(parts_[leaf].length / random.by_ratio(1e3, 10e3)) + 1;
    }
    std::string kind() const override { return "hot leaf"; }
};

// The first target calls the second one now and then.
class Nested : public PartsService {
  public:
    explicit Nested(Random& random)
        : PartsService(random, 3, draw_any_period(random)), inner_(random.count(1, 10)) {
        parts_[1].calls = static_cast<double>(inner_);
    }
    std::string kind() const override { return "nested"; }
    void run(double end, Clockwork& clockwork) const override {
        double now = 0;
        for (uint64_t n = 0; now < end; ++n) {
            now = clockwork.call(0, now, parts_[0].calls);
            for (size_t i = 0; i < inner_; ++i) {
                now = clockwork.call(1, now, 1);
                now = clockwork.work(
                    now, parts_[1].length_at(n * inner_ + i) / static_cast<double>(inner_));
            }
            now = clockwork.work(now, parts_[0].length_at(n));
            now = parts_[2].run(now, n, clockwork);
            clockwork.done(now);
        }
    }

  private:
    size_t inner_;
};

// Branches that run at once, and something after all of them.
class ForkJoin : public PartsService {
  public:
    explicit ForkJoin(Random& random)
        : PartsService(random, random.count(3, 4), draw_any_period(random)) {
        for (Part& part : parts_) part.spread = random.between(0, 0.05);
        for (size_t i = 2; i < parts_.size(); ++i) // the others have slack
            parts_[i].length = parts_[1].length * random.between(0.4, 0.9);
    }
    std::string kind() const override { return "fork and join"; }
    void run(double end, Clockwork& clockwork) const override {
        double now = 0;
        for (uint64_t n = 0; now < end; ++n) {
            now = parts_[0].run(now, n, clockwork);
            double last = now;
            for (size_t i = 1; i < parts_.size(); ++i)
                last = std::max(last, parts_[i].run(now, n, clockwork));
            now = last;
            clockwork.done(now);
        }
    }
};

// Stages with a thread each and bounded queues between them; the slowest one may be any.
class Pipeline : public PartsService {
  public:
    Pipeline(Random& random, size_t stages, size_t queue)
        : PartsService(random, stages, draw_period(random)), queue_(queue) {
        const size_t slowest = random.count(0, stages - 1);
        for (size_t i = 0; i < stages; ++i)
            if (i != slowest) parts_[i].length = parts_[slowest].length * random.between(0.3, 0.85);
        for (Part& part : parts_) part.spread = random.between(0, 0.1);
    }
    std::string kind() const override { return queue_ > 16 ? "prefetch" : "pipeline"; }
    void run(double end, Clockwork& clockwork) const override {
        // When each stage has finished its last item, and has taken the last `queue_` ones.
        std::vector<double> finished(parts_.size());
        std::vector<std::deque<double>> taken(parts_.size());
        for (uint64_t n = 0; finished.back() < end; ++n) {
            double now = 0;
            for (size_t i = 0; i < parts_.size(); ++i) {
                const double begin = std::max(now, finished[i]);
                taken[i].push_back(begin);
                now = parts_[i].run(begin, n, clockwork);
                // It can be put down only when the next stage has room.
                if (i + 1 < parts_.size() && taken[i + 1].size() >= queue_) {
                    now = std::max(now, taken[i + 1].front());
                    taken[i + 1].pop_front();
                }
                finished[i] = now;
            }
            clockwork.done(now);
        }
    }

  private:
    size_t queue_;
};

// Workers that each do all of a unit, with a lock around a part of it.
class Pool : public PartsService {
  public:
    explicit Pool(Random& random) : PartsService(random, 3, draw_period(random)) {
        workers_ = random.count(2, 8);
        const auto workers = static_cast<double>(workers_);
        const double load = random.count(0, 1) == 0
                                ? random.between(0.2, 0.6) // free most of the time
                                : random.between(1.5, 3);  // a convoy
        parts_[0].length *= workers;
        parts_[2].length *= workers;
        parts_[1].length = (parts_[0].length + parts_[2].length) / workers * load;
    }
    std::string kind() const override { return "pool and lock"; }
    void run(double end, Clockwork& clockwork) const override {
        std::vector<double> free(workers_);
        for (size_t i = 0; i < workers_; ++i) free[i] = static_cast<double>(i) * 1000;
        double lock = 0;
        // Whoever comes to the lock first has it first.
        struct Waiting {
            double at;
            size_t worker;
        };
        std::vector<Waiting> waiting;
        for (size_t i = 0; i < workers_; ++i)
            waiting.push_back({parts_[0].run(free[i], i, clockwork), i});
        for (uint64_t n = 0; lock < end; ++n) {
            auto next = std::min_element(waiting.begin(), waiting.end(),
                                         [](const auto& a, const auto& b) { return a.at < b.at; });
            lock = parts_[1].run(std::max(lock, next->at), n, clockwork);
            const double done = parts_[2].run(lock, n, clockwork);
            clockwork.done(done);
            next->at = parts_[0].run(done, n + workers_, clockwork);
        }
    }

  private:
    size_t workers_ = 2;
};

// Something that is called once in many units, on the thread itself or on another one with a queue.
class Batches : public PartsService {
  public:
    Batches(Random& random, size_t every)
        : PartsService(random, 2, draw_period(random)),
          every_(every),
          aside_(random.count(0, 1) == 1) {
        const auto units = static_cast<double>(every_);
        parts_[1].calls = 1;
        parts_[1].length = parts_[0].length * units * random.between(0.2, 0.8);
    }
    std::string kind() const override { return every_ > 9 ? "rare calls" : "batches"; }
    double calls_per_unit(size_t target) const override {
        return target == 0 ? parts_[0].calls : 1 / static_cast<double>(every_);
    }
    void run(double end, Clockwork& clockwork) const override {
        double now = 0, device = 0;
        for (uint64_t n = 0; now < end; ++n) {
            now = parts_[0].run(now, n, clockwork);
            if (n % every_ == every_ - 1) {
                if (aside_) now = std::max(now, device); // one batch may wait
                const double flushed = parts_[1].run(now, n, clockwork);
                if (aside_)
                    device = flushed;
                else
                    now = flushed;
            }
            clockwork.done(now);
        }
    }

  private:
    size_t every_;
    bool aside_;
};

// Units come at a rate of their own.
class RateLimited : public PartsService {
  public:
    explicit RateLimited(Random& random)
        : PartsService(random, random.count(1, 3), draw_period(random)) {
        double busy = 0;
        for (const Part& part : parts_) busy += part.length;
        gap_ = busy * random.between(1.2, 3);
    }
    std::string kind() const override { return "rate-limited"; }
    void run(double end, Clockwork& clockwork) const override {
        double now = 0;
        for (uint64_t n = 0; now < end; ++n) {
            now = std::max(now, gap_ * static_cast<double>(n));
            for (const Part& part : parts_) now = part.run(now, n, clockwork);
            clockwork.done(now);
        }
    }

  private:
    double gap_ = 0;
};

// A thread with nothing to do with the units, beside one that makes them.
class OffPath : public PartsService {
  public:
    explicit OffPath(Random& random) : PartsService(random, 2, draw_any_period(random)) {}
    std::string kind() const override { return "off the path"; }
    void run(double end, Clockwork& clockwork) const override {
        double now = 0, aside = 0;
        for (uint64_t n = 0, m = 0; now < end; ++n) {
            now = parts_[0].run(now, n, clockwork);
            for (; aside < now; ++m) aside = parts_[1].run(aside, m, clockwork);
            clockwork.done(now);
        }
    }
};

// The host's speed over time.
class Weather {
  public:
    Weather(const Host& host, uint64_t seed, double slice_ns, size_t slices) : slice_ns_(slice_ns) {
        Random random(seed);
        double slow = 0;
        const double steps = 1e9 / slice_ns; // a second
        for (size_t slice = 0; slice < slices; ++slice) {
            slow += host.slow * std::sqrt(2 / steps) * random.normal() - slow / steps;
            speed_.push_back(std::exp(slow + host.fast * random.normal()));
            stolen_.push_back(random.between(0, 1) < host.steals / steps
                                  ? host.stolen_ns * random.exponential()
                                  : 0);
        }
    }
    // Nothing is stolen twice.
    double work(double now, double length) {
        const auto slice = static_cast<size_t>(now / slice_ns_);
        if (slice >= speed_.size()) return now + length;
        return now + length * speed_[slice] + std::exchange(stolen_[slice], 0.0);
    }

  private:
    double slice_ns_;
    std::vector<double> speed_;
    std::vector<double> stolen_;
};

// The delays that a run's sequences give.
class Measuring : public Clockwork {
  public:
    Measuring(const Service& service, const Host& host, uint64_t seed, Measurement& out,
              size_t slices)
        : weather_(host, seed, out.run.slice_ns, slices),
          call_error_ns_(host.call_error_ns),
          out_(out),
          slices_(slices) {
        out.run.units.assign(slices, 0);
        since_ns_.assign(slices, 0);
        for (size_t target = 0; target < service.targets(); ++target) {
            auto& one = out.run.targets.emplace_back();
            one.injected.assign(slices, 0);
            one.delays.assign(slices, 0);
            for (size_t stage = 0; one.steps.size() < slices; ++stage)
                for (const auto& step : experiment::stage_of(seed, target, stage, out.run.chance))
                    one.steps.push_back(step);
            one.steps.resize(slices);
        }
    }
    double work(double now, double length) override { return weather_.work(now, length); }
    double call(size_t target, double now, double calls) override {
        const size_t slice = slice_of(now);
        if (slice >= slices_) return now;
        auto& mine = out_.run.targets[target];
        if (!mine.steps[slice].on || out_.dose_ns[target] == 0) return now;
        const double delay = out_.dose_ns[target] * experiment::share_of(mine.steps[slice].level);
        mine.injected[slice] += calls * delay;
        mine.delays[slice] += calls;
        return now + calls * (delay + call_error_ns_);
    }
    void done(double now) override {
        const size_t slice = slice_of(now);
        if (slice >= slices_) return;
        ++out_.run.units[slice];
        since_ns_[slice] +=
            static_cast<uint64_t>(now - static_cast<double>(slice) * out_.run.slice_ns);
    }
    void end() { experiment::count_parts(out_.run, since_ns_); }

  private:
    size_t slice_of(double now) const { return static_cast<size_t>(now / out_.run.slice_ns); }

    Weather weather_;
    double call_error_ns_;
    Measurement& out_;
    size_t slices_;
    std::vector<uint64_t> since_ns_;
};

// One delay all the time, on a host that disturbs nothing.
class Steadily : public Clockwork {
  public:
    Steadily(size_t target, double delay) : target_(target), delay_(delay) {}
    double work(double now, double length) override { return now + length; }
    double call(size_t target, double now, double calls) override {
        if (target != target_) return now;
        injected_ += calls * delay_;
        return now + calls * delay_;
    }
    void done(double now) override { units.push_back({now, injected_}); }

    std::vector<Steady::Unit> units;

  private:
    size_t target_;
    double delay_;
    double injected_ = 0;
};

} // namespace

std::unique_ptr<Service> draw_service(uint64_t seed) {
    Random random(seed);
    switch (random.count(0, 10)) {
        case 0:
            return std::make_unique<Serial>(random);
        case 1:
            return std::make_unique<HotLeaf>(random);
        case 2:
            return std::make_unique<Nested>(random);
        case 3:
            return std::make_unique<ForkJoin>(random);
        case 4:
            return std::make_unique<Pipeline>(random, random.count(2, 5), random.count(1, 16));
        case 5:
            return std::make_unique<Pipeline>(random, 2, random.count(17, 128));
        case 6:
            return std::make_unique<Pool>(random);
        case 7:
            return std::make_unique<Batches>(random, random.count(2, 9));
        case 8:
            return std::make_unique<Batches>(random,
                                             static_cast<size_t>(random.by_ratio(10, 1000)));
        case 9:
            return std::make_unique<RateLimited>(random);
        default:
            return std::make_unique<OffPath>(random);
    }
}

Host draw_host(uint64_t seed) {
    Random random(seed ^ 0x5eed);
    Host host;
    host.slow = random.by_ratio(0.002, 0.1);
    host.fast = random.by_ratio(0.002, 0.03);
    host.steals = random.by_ratio(0.1, 2);
    host.stolen_ns = random.by_ratio(0.1e6, 2e6);
    host.call_error_ns = 20 * random.normal();
    return host;
}

Measurement measure(const Service& service, const Host& host, uint64_t seed, double slice_ns,
                    size_t slices, double share, const std::vector<size_t>& delayed) {
    Measurement result;
    result.run.slice_ns = slice_ns;
    result.run.chance = experiment::chance_of(delayed.size(), share, kMaxSlowdown);
    const double unit = Steady(service, 0.2).period();
    result.dose_ns.resize(service.targets());
    for (const size_t target : delayed)
        result.dose_ns[target] =
            std::min(slice_ns / 2, share * unit / service.calls_per_unit(target));
    Measuring measuring(service, host, seed, result, slices);
    service.run(slice_ns * static_cast<double>(slices), measuring);
    measuring.end();
    return result;
}

Steady::Steady(const Service& service, double seconds, size_t target, double delay_ns) {
    Steadily clockwork(target, delay_ns);
    service.run(seconds * 1e9, clockwork);
    units_ = std::move(clockwork.units);
}

double Steady::period() const {
    return (units_.back().at - units_.front().at) / static_cast<double>(units_.size() - 1);
}

double Steady::against(const Steady& other) const {
    const size_t last = std::min(units_.size(), other.units_.size()) - 1;
    const double injected = units_[last].injected - other.units_[last].injected;
    return injected == 0 ? 0 : (units_[last].at - other.units_[last].at) / injected;
}

} // namespace speedbump::simulated
