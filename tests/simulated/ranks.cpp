// SPDX-License-Identifier: MIT
// How often the model of experiments is right of ranks that wait for each other, one of them slowed
// at a time (--where each), over jobs drawn at random.
//
//   ranks [COUNT [SEED]]   the seed is drawn anew unless given; status 1: not as promised
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "experiment/model/effects.h"
#include "fleet/combine.h"
#include "jobs.h"
#include "promises.h"
#include "util/numbers.h"

using namespace speedbump;
using experiment::Finding;
using simulated::holds;
using simulated::share;

namespace {

constexpr double kSliceNs = 50e6;
constexpr double kShortest = 20, kLongest = 300; // s
constexpr double kUserShare = 0.8;               // of a step: a dose that the user has named
constexpr double kLargest = 1;                   // of a step: the last dose that is tried
constexpr double kBeyondSlack = 0.4;             // of what is injected
constexpr double kNone = 0.02;                   // a criticality up to this is hidden
constexpr double kPlain = 0.2;                   // and above this must not be called so
constexpr double kToldSlack = 0.1;               // of a step: slacks that are compared

struct Tally {
    size_t jobs = 0;
    size_t intervals = 0, covered = 0;
    size_t matters = 0, found = 0, wrongly_hidden = 0;
    size_t hidden = 0, told_hidden = 0, wrongly_matters = 0;
    size_t silent = 0, slacks = 0, in_slacks = 0;
    std::vector<double> half_widths, slack_errors;
};

// As the coordinator of a fleet chooses it.
double dose_of(const simulated::Job& job, size_t rank) {
    double dose = experiment::kLargeShare * job.step();
    for (; 2 * dose <= kSliceNs / 2; dose *= 2) {
        const double slowed = job.effect(rank, dose) * dose / job.step();
        const double given = dose / job.step() / (1 + slowed);
        const bool is_seen = slowed >= experiment::kLargeShare && slowed >= kBeyondSlack * given;
        if (is_seen || given >= kLargest) break;
    }
    return dose;
}

void add(Tally& tally, const simulated::Job& job, double dose, const experiment::Effect& effect,
         uint64_t seed) {
    // Of a smaller dose than the least that was given nothing can be known.
    const double truth = job.effect(effect.target, dose * fleet::share_of(true, 1));
    ++tally.intervals;
    tally.covered += effect.criticality.interval.contains(truth);
    tally.half_widths.push_back(effect.criticality.interval.half_width());
    tally.silent += effect.finding == Finding::kSilent;
    if (truth > kPlain) {
        ++tally.matters;
        tally.found += effect.finding == Finding::kMatters;
        if (effect.finding == Finding::kHidden) {
            ++tally.wrongly_hidden;
            fmt::print("seed {}: rank {} of {:.3f} is called hidden\n", seed, effect.target, truth);
        }
    } else if (std::abs(truth) < kNone) {
        ++tally.hidden;
        tally.told_hidden += effect.finding == Finding::kHidden;
        if (effect.finding == Finding::kMatters) {
            ++tally.wrongly_matters;
            fmt::print("seed {}: rank {} of {:.3f} is said to matter, {:.3f} ({:.3f} to {:.3f})\n",
                       seed, effect.target, truth, effect.criticality.value,
                       effect.criticality.interval.low, effect.criticality.interval.high);
        }
    }
    const double slack = job.slack(effect.target);
    if (effect.shape != experiment::Shape::kHinge || slack < kToldSlack * job.step()) return;
    ++tally.slacks;
    tally.in_slacks += effect.slack.interval.contains(slack);
    tally.slack_errors.push_back(std::abs(effect.slack.value / slack - 1));
}

void examine(uint64_t seed, bool by_user, Tally& tally) {
    const simulated::Job job(seed);
    std::mt19937_64 random(seed ^ 0x1e57);
    const double seconds = kShortest * std::pow(kLongest / kShortest,
                                                std::uniform_real_distribution<double>()(random));
    std::vector<double> doses;
    for (size_t rank = 0; rank < job.ranks(); ++rank)
        doses.push_back(by_user ? std::min(kUserShare * job.step(), kSliceNs / 2)
                                : dose_of(job, rank));
    const auto run =
        job.measure(seed, kSliceNs, static_cast<size_t>(seconds * 1e9 / kSliceNs), doses);
    const auto regression = experiment::regress(run, experiment::find_response(run));
    experiment::EffectLimits limits;
    limits.may_wait = true;
    ++tally.jobs;
    for (const auto& effect : experiment::find_effects(regression, limits))
        add(tally, job, doses[effect.target], effect, seed);
}

void print(const std::string& doses, const Tally& tally) {
    fmt::print(
        "{}: of {} jobs {} intervals, {:.1f} % hold the truth, half of them within +- {:.3f}\n",
        doses, tally.jobs, tally.intervals, 100 * share(tally.covered, tally.intervals),
        median(tally.half_widths));
    fmt::print("  of {} ranks above {} {} are said to matter, {} to be hidden\n", tally.matters,
               kPlain, tally.found, tally.wrongly_hidden);
    fmt::print("  of {} hidden ones {} are said to matter, {} to be hidden\n", tally.hidden,
               tally.wrongly_matters, tally.told_hidden);
    fmt::print(
        "  of {} nothing is said; {} slacks, {:.1f} % in their intervals, half of them "
        "within {:.1f} %\n",
        tally.silent, tally.slacks, 100 * share(tally.in_slacks, tally.slacks),
        100 * median(tally.slack_errors));
}

bool is_as_promised(const Tally& all) {
    const double covered = share(all.covered, all.intervals);
    bool good = holds(covered >= 0.93, "95 % of the intervals or more");
    good &= holds(all.wrongly_hidden == 0, "none that matters is called hidden");
    good &= holds(share(all.wrongly_matters, all.hidden) <= 0.005,
                  "at most 0.5 % of those hidden are said to matter");
    return good;
}

} // namespace

int main(int count, char** arguments) {
    const auto [jobs, seed] = simulated::draws_of(count, arguments, 500);
    fmt::print("{} jobs from seed {}\n", jobs, seed);
    Tally chosen, named;
    for (size_t job = 0; job < jobs; ++job)
        examine(seed + job, job % 2 == 1, job % 2 == 1 ? named : chosen);
    print("doses chosen", chosen);
    print("doses named", named);
    const bool is_chosen_good = is_as_promised(chosen), is_named_good = is_as_promised(named);
    return is_chosen_good && is_named_good ? 0 : 1;
}
