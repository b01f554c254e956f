// SPDX-License-Identifier: MIT
#include "experiment/pace.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "experiment/anytime.h"
#include "util/clock.h"
#include "util/numbers.h"

namespace speedbump::experiment {

namespace {

using std::chrono::nanoseconds;

// The slowest waves of a run, up to four in it: they have the noise of all that hangs together for
// less than that. Fewer would need a larger t.
constexpr size_t kMaxCosines = 8;

constexpr double kSettlingUnits = 5;
constexpr size_t kSteadyStretches = 3;
constexpr double kSteady = 0.1; // their spread

const double kNoChance = std::log(1e4);
constexpr double kWatchNs = 1e9, kWatchUnits = 100;

constexpr auto kShortestCheck = std::chrono::milliseconds(250);
constexpr auto kLongestCheck = std::chrono::seconds(5);
constexpr double kCheckUnits = 20;
constexpr size_t kStrikes = 3;
constexpr auto kStrikesWithin = std::chrono::seconds(10);
constexpr double kStrikesWithinUnits = 500; // where that is longer: a guard needs up to 100

Stretch sum_of(std::span<const Stretch> stretches) {
    Stretch sum;
    for (const Stretch& one : stretches) {
        sum.units += one.units;
        sum.time += one.time;
    }
    return sum;
}

// How much each stretch moves ln(period): they sum to 0.
std::vector<double> influences(std::span<const Stretch> stretches, const Stretch& sum) {
    std::vector<double> result;
    const auto count = static_cast<double>(stretches.size());
    for (const Stretch& one : stretches)
        result.push_back((one.time / sum.time - one.units / sum.units) * count);
    return result;
}

struct StandardError {
    double value = std::numeric_limits<double>::infinity();
    double freedom = 0;
};

// The standard error of the mean of values that hang together in time: the mean square of their
// lowest cosine transforms (E. Lazarus, D. J. Lewis, J. H. Stock, M. W. Watson, "HAR inference:
// recommendations for practice", J. Business & Economic Statistics 36, 2018), for Student's t.
StandardError error_of_mean(const std::vector<double>& values) {
    const size_t count = values.size();
    if (count < 2) return {};
    const size_t cosines = std::clamp<size_t>(count / 2, 1, kMaxCosines);
    double squares = 0;
    for (size_t wave = 1; wave <= cosines; ++wave) {
        const double step =
            std::numbers::pi * static_cast<double>(wave) / static_cast<double>(count);
        double sum = 0;
        for (size_t i = 0; i < count; ++i)
            sum += values[i] * std::cos(step * (static_cast<double>(i) + 0.5));
        squares += 2 * sum * sum / static_cast<double>(count);
    }
    const auto freedom = static_cast<double>(cosines);
    return {std::sqrt(squares / freedom / static_cast<double>(count)), freedom};
}

bool is_known(const Stretch& sum) {
    return sum.units > 0 && sum.time > 0;
}

// From the logarithm of a ratio to a share of change.
Estimate as_share(Estimate estimate) {
    estimate.error *= std::exp(estimate.value);
    for (double* one : {&estimate.value, &estimate.interval.low, &estimate.interval.high,
                        &estimate.wide.low, &estimate.wide.high})
        *one = std::expm1(*one);
    return estimate;
}

Estimate as_share(double log_ratio, const StandardError& error) {
    return as_share(estimate_of(log_ratio, error.value, error.freedom));
}

Interval hull(const Interval& a, const Interval& b) {
    return {std::min(a.low, b.low), std::max(a.high, b.high)};
}

// `seen`, where it is not known which of the two is true.
Estimate either(Estimate seen, const Estimate& other) {
    seen.interval = hull(seen.interval, other.interval);
    seen.wide = hull(seen.wide, other.wide);
    seen.p = seen.value * other.value > 0 ? std::max(seen.p, other.p) : 1;
    return seen;
}

struct LogRatio {
    double value = 0;
    StandardError error;
};

LogRatio side_by_side(std::span<const Stretch> a, std::span<const Stretch> b) {
    const Stretch sum_a = sum_of(a), sum_b = sum_of(b);
    if (!is_known(sum_a) || !is_known(sum_b) || a.size() != b.size()) return {};
    std::vector<double> difference = influences(b, sum_b);
    const std::vector<double> of_a = influences(a, sum_a);
    for (size_t i = 0; i < difference.size(); ++i) difference[i] -= of_a[i];
    return {std::log(sum_b.time / sum_b.units / (sum_a.time / sum_a.units)),
            error_of_mean(difference)};
}

} // namespace

Pace pace_of(std::span<const Stretch> stretches) {
    const Stretch sum = sum_of(stretches);
    if (!is_known(sum)) return {};
    const StandardError error = error_of_mean(influences(stretches, sum));
    return {sum.time / sum.units, error.value, error.freedom};
}

Estimate change_apart(const Pace& a, const Pace& b) {
    if (a.period <= 0 || b.period <= 0) return as_share(0, {});
    const double va = a.error * a.error, vb = b.error * b.error;
    StandardError error{std::sqrt(va + vb), 0};
    if (a.freedom > 0 && b.freedom > 0) // Welch's
        error.freedom = va + vb > 0
                            ? (va + vb) * (va + vb) / (va * va / a.freedom + vb * vb / b.freedom)
                            : std::min(a.freedom, b.freedom);
    return as_share(std::log(b.period / a.period), error);
}

Estimate change_side_by_side(std::span<const Stretch> a, std::span<const Stretch> b,
                             double unlike) {
    const LogRatio ratio = side_by_side(a, b);
    return as_share(
        either(estimate_of(ratio.value, ratio.error.value, ratio.error.freedom),
               estimate_of(ratio.value - unlike, ratio.error.value, ratio.error.freedom)));
}

Estimate change_at_any_look(std::span<const Stretch> a, std::span<const Stretch> b, size_t blocks,
                            double unlike) {
    const LogRatio ratio = side_by_side(a, b);
    const auto at_any_look = [&](double value) {
        return anytime(estimate_of(value, ratio.error.value, ratio.error.freedom), blocks,
                       ratio.error.freedom);
    };
    return as_share(either(at_any_look(ratio.value), at_any_look(ratio.value - unlike)));
}

void SettlingPace::add(double time, uint64_t units) {
    now_.time += time;
    now_.units += static_cast<double>(units);
    if (now_.units >= kSettlingUnits) stretches_.push_back(std::exchange(now_, {}));
}

bool SettlingPace::is_steady() const {
    if (stretches_.size() < kSteadyStretches) return false;
    std::vector<double> periods;
    double units = kSettlingUnits;
    for (const Stretch& one : of_late()) {
        periods.push_back(one.time / one.units);
        units = std::max(units, one.units);
    }
    const auto [low, high] = std::minmax_element(periods.begin(), periods.end());
    // A unit more or less is no change of pace.
    return (*high - *low) / median(periods) <= std::max(kSteady, 1 / units);
}

double SettlingPace::period() const {
    std::vector<double> periods;
    for (const Stretch& one : stretches_) periods.push_back(one.time / one.units);
    const Stretch sum = is_steady() ? sum_of(of_late()) : now_;
    return is_steady() || periods.empty() ? sum.time / sum.units : median(std::move(periods));
}

std::span<const Stretch> SettlingPace::of_late() const {
    return std::span(stretches_).last(kSteadyStretches);
}

std::optional<double> slowdown_beyond(double max_slowdown, double time, uint64_t units,
                                      double period) {
    if (!(period > 0)) return std::nullopt;
    const double expected = time / period;
    const auto seen = static_cast<double>(units);
    const double slowdown = expected / std::max(seen, 0.5) - 1;
    const double noise = 3 / std::sqrt(expected);
    if (slowdown <= max_slowdown * (1 + noise) + noise) return std::nullopt;
    // Chernoff's bound of how likely so few units are, if they come at random as often as usual.
    const double none_lost = units > 0 ? seen * std::log(seen / expected) : 0;
    if (expected - seen + none_lost < kNoChance) return std::nullopt;
    return slowdown;
}

std::optional<double> SlowdownWatch::look(uint64_t at_ns, uint64_t units, double max_slowdown,
                                          double period) {
    const Look now{at_ns, units};
    if (last_ && now.units < last_->units) since_ = last_ = now; // what counts them began anew
    const auto beyond = [&](const Look& from) {
        return slowdown_beyond(max_slowdown, static_cast<double>(now.at_ns - from.at_ns),
                               now.units - std::min(now.units, from.units), period);
    };
    std::optional<double> slowdown;
    if (last_) slowdown = beyond(*last_);
    if (since_ && !slowdown) slowdown = beyond(*since_);
    last_ = now;
    if (!since_ ||
        static_cast<double>(now.at_ns - since_->at_ns) > std::max(kWatchNs, kWatchUnits * period))
        since_ = now;
    return slowdown;
}

std::chrono::nanoseconds time_of_check(double period) {
    return std::clamp<nanoseconds>(nanoseconds(static_cast<int64_t>(kCheckUnits * period)),
                                   kShortestCheck, kLongestCheck);
}

bool Strikes::add(uint64_t now_ns, double period) {
    const auto within =
        static_cast<uint64_t>(std::max(ns(kStrikesWithin), kStrikesWithinUnits * period));
    strikes_.push_back(now_ns);
    std::erase_if(strikes_, [&](uint64_t strike) { return now_ns - strike > within; });
    return strikes_.size() >= kStrikes;
}

} // namespace speedbump::experiment
