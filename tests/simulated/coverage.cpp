// SPDX-License-Identifier: MIT
// How often the model of experiments is right, over services drawn at random.
//
//   coverage [COUNT [SEED]]   the seed is drawn anew unless given; status 1: not as promised
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "experiment/design.h"
#include "experiment/model/effects.h"
#include "promises.h"
#include "services.h"
#include "util/numbers.h"

using namespace speedbump;
using experiment::Finding;
using simulated::holds;
using simulated::share;

namespace {

constexpr size_t kSlices = 4096;
constexpr std::array<size_t, 3> kLooks = {900, 1350, 2025}; // whether it is to begin anew
constexpr double kTruthShare = 0.025; // of a unit's period: the dose that tells the truth
constexpr double kTruthSeconds = 2;   // of the steady runs, and
constexpr double kTruthUnits = 10'000;
constexpr double kNone = 0.02; // a criticality up to this is hidden
constexpr double kPlain = 0.2; // and above this must not be called so

struct Tally {
    size_t intervals = 0, covered = 0;
    size_t matters = 0, found = 0, wrongly_hidden = 0;
    size_t hidden = 0, told_hidden = 0, wrongly_matters = 0;
    size_t silent = 0;
    size_t shams = 0, alarms = 0;
    std::vector<double> half_widths;
};

void add(Tally& tally, const experiment::Effect& effect, double truth, uint64_t seed) {
    ++tally.intervals;
    tally.covered += effect.criticality.interval.contains(truth);
    tally.half_widths.push_back(effect.criticality.interval.half_width());
    tally.silent += effect.finding == Finding::kSilent;
    if (truth > kPlain) {
        ++tally.matters;
        tally.found += effect.finding == Finding::kMatters;
        if (effect.finding == Finding::kHidden) {
            ++tally.wrongly_hidden;
            fmt::print("seed {}: target {} of {:.3f} is called hidden, {:.3f} +- {:.3f}\n", seed,
                       effect.target, truth, effect.criticality.value,
                       effect.criticality.interval.half_width());
        }
    } else if (std::abs(truth) < kNone) {
        ++tally.hidden;
        tally.told_hidden += effect.finding == Finding::kHidden;
        tally.wrongly_matters += effect.finding == Finding::kMatters;
    }
}

// A target that delays nothing and is taken for one that does.
void pretend(experiment::SlicedRun& run, uint64_t seed, double share) {
    experiment::TargetSlices sham;
    for (size_t stage = 0; sham.steps.size() < run.units.size(); ++stage)
        for (const auto& step : experiment::stage_of(seed, run.targets.size(), stage, run.chance))
            sham.steps.push_back(step);
    sham.steps.resize(run.units.size());
    for (const auto& step : sham.steps) {
        const double dose = step.on ? share * experiment::share_of(step.level) : 0;
        sham.injected.push_back(dose * run.slice_ns);
        sham.delays.push_back(step.on ? 1 : 0);
    }
    run.targets.push_back(std::move(sham));
}

experiment::Regression regression_of(const experiment::SlicedRun& run) {
    return experiment::regress(run, experiment::find_response(run));
}

experiment::SlicedRun first_of(const experiment::SlicedRun& run, size_t slices) {
    experiment::SlicedRun result = run;
    result.units.resize(slices);
    for (auto& target : result.targets) {
        target.steps.resize(slices);
        target.injected.resize(slices);
        target.delays.resize(slices);
    }
    return result;
}

// What an experiment of kSlices ends with, as experiment::run_slices() makes it: large doses, and
// small ones for the time that is left where the large ones bend.
experiment::SlicedRun run_of(const simulated::Service& service, uint64_t seed, double slice_ns,
                             const std::vector<size_t>& delayed) {
    const auto with = [&](double share, size_t slices, uint64_t at) {
        auto run = simulated::measure(service, simulated::draw_host(at), at, slice_ns, slices,
                                      share, delayed)
                       .run;
        pretend(run, at, share);
        return run;
    };
    auto large = with(experiment::kLargeShare, kSlices, seed);
    for (const size_t look : kLooks)
        if (bends(regression_of(first_of(large, look)), {}))
            return with(experiment::kSmallShare, kSlices - look, seed);
    return large;
}

void examine(uint64_t seed, bool one_alone, std::map<std::string, Tally>& tallies) {
    const auto service = simulated::draw_service(seed);
    const double unit = simulated::Steady(*service, 0.2).period();
    const auto slice_ns = static_cast<double>(experiment::slice_length(unit).count());
    std::vector<size_t> delayed;
    for (size_t target = 0; target < service->targets(); ++target)
        if (!one_alone || target == seed % service->targets()) delayed.push_back(target);
    const auto regression = regression_of(run_of(*service, seed, slice_ns, delayed));
    const double seconds = std::max(kTruthSeconds, kTruthUnits * unit / 1e9);
    const simulated::Steady without(*service, seconds);
    Tally& tally = tallies[one_alone ? "one alone" : service->kind()];
    for (const auto& effect : experiment::find_effects(regression, {})) {
        if (effect.target == service->targets()) {
            ++tally.shams;
            tally.alarms += !effect.criticality.wide.contains(0);
            continue;
        }
        const double dose =
            std::min(slice_ns / 2, kTruthShare * unit / service->calls_per_unit(effect.target));
        const simulated::Steady with(*service, seconds, effect.target, dose);
        add(tally, effect, with.against(without), seed);
    }
}

void print(const std::string& kind, const Tally& tally) {
    fmt::print("{:14} {:5} {:6.3f} {:6.3f} {:6} {:6} {:6} {:6} {:6} {:6} {:6} {:6.3f}\n", kind,
               tally.intervals, share(tally.covered, tally.intervals), median(tally.half_widths),
               tally.matters, tally.found, tally.wrongly_hidden, tally.hidden, tally.told_hidden,
               tally.wrongly_matters, tally.silent, share(tally.alarms, tally.shams));
}

Tally total(const std::map<std::string, Tally>& tallies) {
    Tally all;
    for (const auto& [kind, one] : tallies) {
        for (size_t Tally::*count :
             {&Tally::intervals, &Tally::covered, &Tally::matters, &Tally::found,
              &Tally::wrongly_hidden, &Tally::hidden, &Tally::told_hidden, &Tally::wrongly_matters,
              &Tally::silent, &Tally::shams, &Tally::alarms})
            all.*count += one.*count;
        all.half_widths.insert(all.half_widths.end(), one.half_widths.begin(),
                               one.half_widths.end());
    }
    return all;
}

bool is_as_promised(const Tally& all) {
    const double covered = share(all.covered, all.intervals);
    bool good = holds(covered >= 0.93 && covered <= 0.97, "95 +- 2 % of the intervals");
    good &= holds(share(all.alarms, all.shams) <= 0.05, "sham alarms at most 5 %");
    good &= holds(all.wrongly_hidden == 0, "none that matters is called hidden");
    good &= holds(share(all.wrongly_matters, all.hidden) <= 0.02,
                  "at most 2 % of those hidden are said to matter");
    return good;
}

} // namespace

int main(int count, char** arguments) {
    const auto [services, seed] = simulated::draws_of(count, arguments, 1000);
    fmt::print("{} services from seed {}\n", services, seed);
    fmt::print("{:14} {:>5} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}\n", "", "k",
               "cover", "+-", ">0.2", "found", "hidden", "0", "found", "matter", "silent", "sham");
    std::map<std::string, Tally> tallies;
    for (size_t service = 0; service < services; ++service)
        examine(seed + service, service % 5 == 4, tallies);
    for (const auto& [kind, tally] : tallies) print(kind, tally);
    const Tally all = total(tallies);
    print("all", all);
    return is_as_promised(all) ? 0 : 1;
}
