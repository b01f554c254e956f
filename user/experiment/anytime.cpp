// SPDX-License-Identifier: MIT
#include "experiment/anytime.h"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <limits>

// Under no effect, the ratio of likelihoods of all t statistics so far, with an effect drawn from
// N(0, kSpread * variance of a block) against none, is a martingale that begins at 1: that it ever
// reaches 1 / alpha has a probability of alpha at most (Ville). It depends on the newest t alone:
//
//   E = (1 + n s)^(-1/2) * ((1 + t^2 / v) / (1 + t^2 / (v (1 + n s))))^(n/2),  v = n - 1, s =
//   kSpread
//
// T. L. Lai, "On confidence sequences", Annals of Statistics 4, 1976; H. Wang, A. Ramdas,
// "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance",
// Sequential Analysis 44, 2025.

namespace speedbump::experiment {

namespace {

// Narrowest at some ten blocks, and little wider than could be at hundreds.
constexpr double kSpread = 1;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The t at which E reaches 1 / alpha; infinite where it never does.
double threshold(double blocks, double alpha) {
    const double wider = 1 + blocks * kSpread;
    const double reach = std::pow(std::sqrt(wider) / alpha, 2 / blocks);
    if (reach >= wider) return kInfinity;
    return std::sqrt((blocks - 1) * (reach - 1) / (1 - reach / wider));
}

// How probable it is that E gets as far as this t takes it.
double p_of(double blocks, double t) {
    const double wider = 1 + blocks * kSpread;
    const double u = t * t / (blocks - 1);
    const double log_e = blocks / 2 * (std::log1p(u) - std::log1p(u / wider)) - std::log(wider) / 2;
    return std::min(1.0, std::exp(-log_e));
}

// The t of one freedom that is as improbable as `t` is with another.
double translate(double t, double from, double to) {
    if (from == to || !std::isfinite(t)) return t;
    const boost::math::students_t source(from), target(to);
    const double tail = boost::math::cdf(boost::math::complement(source, t));
    if (tail <= std::numeric_limits<double>::min()) return kInfinity;
    return boost::math::quantile(boost::math::complement(target, tail));
}

} // namespace

Estimate anytime(const Estimate& estimate, size_t blocks, double freedom) {
    Estimate result = estimate;
    if (blocks < 3 || !(freedom > 0) || !std::isfinite(estimate.error)) {
        result.interval = result.wide = {-kInfinity, kInfinity};
        result.p = 1;
        return result;
    }
    const auto count = static_cast<double>(blocks);
    const auto interval = [&](double alpha) {
        const double t = translate(threshold(count, alpha), count - 1, freedom);
        if (!std::isfinite(t)) return Interval{-kInfinity, kInfinity};
        return Interval{estimate.value - t * estimate.error, estimate.value + t * estimate.error};
    };
    result.interval = interval(0.05);
    result.wide = interval(0.01);
    if (estimate.error > 0) {
        const double t = translate(std::abs(estimate.value) / estimate.error, freedom, count - 1);
        result.p = std::isfinite(t) ? p_of(count, t) : 0;
    }
    return result;
}

Estimate anytime(const Estimate& estimate, size_t blocks) {
    return anytime(estimate, blocks, static_cast<double>(blocks) - 1);
}

} // namespace speedbump::experiment
