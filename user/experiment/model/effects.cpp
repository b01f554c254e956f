// SPDX-License-Identifier: MIT
#include "experiment/model/effects.h"

#include <algorithm>
#include <array>
#include <boost/math/distributions/normal.hpp>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>

#include "experiment/model/limit.h"

namespace speedbump::experiment {

namespace {

constexpr size_t kSlackSteps = 120;
constexpr double kHingeChance = 0.01;  // that a line looks like a hinge
constexpr double kSlackChance = 0.05;  // that a slack looks as if it were not the true one
constexpr double kCurvedGain = 9;      // chi square: three standard errors
constexpr double kBendChance = 0.05;   // that noise looks like a bend, of any target of a run
constexpr double kAnewChance = 0.01;   // and so much like one that it is begun anew, at one look
constexpr double kUnseen = 0.3;        // standard errors: bias by bends that are too small to see
constexpr size_t kLeastStraight = 3;   // level: below it nothing would be told
constexpr double kSafely = 4.5;        // standard errors: a wrong "hidden" is the worst answer
constexpr double kCallErrors = 3;      // a slack below as many may be an error of the call's cost
constexpr double kSaysNothing = 0.5;   // half width
constexpr double kSmallDose = 1.0 / 8; // of the full dose
constexpr double kMattersP = 0.01;
constexpr double kWaitingP = 3e-3;                      // the same where a slack is the rule
constexpr std::array<double, 3> kSpreads = {0, 0.5, 1}; // of a slack, around its mean

// The criticality of each dose of one target.
struct Doses {
    std::vector<double> per_call;
    Matrix value{0, 1};
    Matrix covariance{0, 0};
    double freedom = 0;
    double pooled = 0; // freedom of what their noise was told from, all of them together
};

// Up to a level; the smallest dose where there is none.
Doses doses_of(const Regression& regression, size_t target, size_t level) {
    std::vector<size_t> members;
    Doses doses;
    for (size_t cell = 0; cell < regression.cells.size(); ++cell) {
        if (regression.cells[cell].target != target) continue;
        doses.pooled += static_cast<double>(regression.cells[cell].blocks);
        if (members.empty() || regression.cells[cell].level <= level) members.push_back(cell);
    }
    doses.pooled -= 1;
    doses.value = Matrix(members.size(), 1);
    doses.covariance = Matrix(members.size(), members.size());
    for (size_t a = 0; a < members.size(); ++a) {
        doses.per_call.push_back(regression.cells[members[a]].per_call);
        doses.value(a, 0) = regression.cells[members[a]].criticality;
        const auto blocks = static_cast<double>(regression.cells[members[a]].blocks);
        doses.freedom = std::max(doses.freedom, blocks - 1);
        for (size_t b = 0; b < members.size(); ++b)
            doses.covariance(a, b) =
                (1 + kUnseen * kUnseen) * regression.covariance(members[a], members[b]);
    }
    return doses;
}

// An error of the cost of a call is an effect of the same size at each dose: the smaller the dose,
// the larger its share of the criticality.
std::optional<Matrix> precision_of(const Doses& doses, double k, double call_error) {
    Matrix covariance = doses.covariance;
    for (size_t a = 0; a < doses.per_call.size(); ++a)
        for (size_t b = 0; b < doses.per_call.size(); ++b)
            covariance(a, b) +=
                k * call_error / doses.per_call[a] * k * call_error / doses.per_call[b];
    return inverse(covariance);
}

// Criticality times a shape of the doses, by generalised least squares.
struct Fit {
    double k = 0;
    double variance = 0;
    double chi_square = 0;
};

Fit fit(const Doses& doses, const Matrix& precision, const std::vector<double>& shape) {
    const size_t size = shape.size();
    double squares = 0, product = 0;
    for (size_t a = 0; a < size; ++a)
        for (size_t b = 0; b < size; ++b) {
            squares += shape[a] * precision(a, b) * shape[b];
            product += shape[a] * precision(a, b) * doses.value(b, 0);
        }
    Fit result;
    if (!(squares > 0)) return result;
    result.k = product / squares;
    result.variance = 1 / squares;
    for (size_t a = 0; a < size; ++a)
        for (size_t b = 0; b < size; ++b)
            result.chi_square += (doses.value(a, 0) - result.k * shape[a]) * precision(a, b) *
                                 (doses.value(b, 0) - result.k * shape[b]);
    return result;
}

std::vector<double> straight(const Doses& doses) {
    return std::vector<double>(doses.per_call.size(), 1.0);
}

// What is left of a dose beyond a slack that is drawn anew for each unit, uniformly: from
// slack * (1 - spread) to slack * (1 + spread). Of the dose.
double left_of(double dose, double slack, double spread) {
    const double least = slack * (1 - spread), most = slack * (1 + spread);
    if (dose <= least) return 0;
    if (dose >= most) return 1 - slack / dose;
    return (dose - least) * (dose - least) / (2 * (most - least) * dose);
}

std::vector<double> hinge(const Doses& doses, double slack, double spread = 0) {
    std::vector<double> shape;
    for (const double dose : doses.per_call) shape.push_back(left_of(dose, slack, spread));
    return shape;
}

// How much better a fit with one parameter more is by chance, its noise being told from so few
// blocks: Student's t, squared. With two parameters more it is twice Fisher's F.
double gain_of_one(double chance, double freedom) {
    if (!(freedom > 0)) return INFINITY;
    const boost::math::students_t distribution(freedom);
    const double t = boost::math::quantile(boost::math::complement(distribution, chance / 2));
    return t * t;
}

double gain_of_two(double chance, double freedom) {
    if (!(freedom > 0)) return INFINITY;
    return freedom * (std::pow(chance, -2 / freedom) - 1);
}

// From a quarter of the smallest dose to near the largest, in equal ratios.
double slack_at(const Doses& doses, size_t step) {
    const auto [smallest, largest] =
        std::minmax_element(doses.per_call.begin(), doses.per_call.end());
    const double low = std::min(*smallest, *largest * kSmallDose) / 4, high = *largest * 0.9;
    return low * std::pow(high / low, static_cast<double>(step) / kSlackSteps);
}

// A criticality that changes with the dose, in proportion: what it is at no dose.
struct CurvedFit {
    double k = 0;
    double variance = 0;
    double chi_square = INFINITY;
};

CurvedFit fit_curved(const Doses& doses, const Matrix& precision) {
    const size_t size = doses.per_call.size();
    CurvedFit result;
    if (size < 3) return result;
    Matrix shape(size, 2);
    for (size_t dose = 0; dose < size; ++dose) {
        shape(dose, 0) = 1;
        shape(dose, 1) = doses.per_call[dose];
    }
    const Matrix weighted = product(transposed(shape), precision);
    const auto covariance = inverse(product(weighted, shape));
    if (!covariance) return result;
    const Matrix solution = product(*covariance, product(weighted, doses.value));
    Matrix rest = doses.value;
    for (size_t dose = 0; dose < size; ++dose)
        rest(dose, 0) -= solution(0, 0) + solution(1, 0) * doses.per_call[dose];
    result.k = solution(0, 0);
    result.variance = (*covariance)(0, 0);
    result.chi_square = product(product(transposed(rest), precision), rest)(0, 0);
    return result;
}

struct HingeFit {
    Fit fit;
    double slack = 0;
    Interval interval; // of the slack
};

HingeFit best_hinge(const Doses& doses, const Matrix& precision) {
    HingeFit best;
    best.fit.chi_square = INFINITY;
    std::vector<Fit> fits;
    for (size_t step = 0; step <= kSlackSteps; ++step) {
        fits.push_back(fit(doses, precision, hinge(doses, slack_at(doses, step))));
        if (fits.back().k <= 0 || fits.back().chi_square >= best.fit.chi_square) continue;
        best.fit = fits.back();
        best.slack = slack_at(doses, step);
    }
    best.interval = {best.slack, best.slack};
    const double gain = gain_of_one(kSlackChance, doses.pooled);
    for (size_t step = 0; step <= kSlackSteps; ++step) {
        if (fits[step].k <= 0 || fits[step].chi_square > best.fit.chi_square + gain) continue;
        best.interval.low = std::min(best.interval.low, slack_at(doses, step));
        best.interval.high = std::max(best.interval.high, slack_at(doses, step));
    }
    return best;
}

// The best that a hinge with a slack above `min` can do, or one whose slack is not the same in each
// unit.
double chi_square_beyond(const Doses& doses, const Matrix& precision, double min, bool may_spread) {
    double best = INFINITY;
    for (const double spread : kSpreads) {
        if (spread > 0 && !may_spread) break;
        for (size_t step = 0; step <= kSlackSteps; ++step) {
            const double slack = slack_at(doses, step);
            if (slack < min) continue;
            best = std::min(best, fit(doses, precision, hinge(doses, slack, spread)).chi_square);
        }
    }
    return best;
}

// The doses up to `max` only.
Doses up_to(const Doses& doses, double max) {
    std::vector<size_t> kept;
    for (size_t dose = 0; dose < doses.per_call.size(); ++dose)
        if (doses.per_call[dose] <= max) kept.push_back(dose);
    Doses result;
    result.freedom = doses.freedom;
    result.pooled = doses.pooled;
    result.value = Matrix(kept.size(), 1);
    result.covariance = Matrix(kept.size(), kept.size());
    for (size_t a = 0; a < kept.size(); ++a) {
        result.per_call.push_back(doses.per_call[kept[a]]);
        result.value(a, 0) = doses.value(kept[a], 0);
        for (size_t b = 0; b < kept.size(); ++b)
            result.covariance(a, b) = doses.covariance(kept[a], kept[b]);
    }
    return result;
}

Estimate estimate_from(double k, double variance, const Doses& doses) {
    return estimate_of(k, std::sqrt(variance), doses.freedom);
}

// The hinge takes the line's place.
void bend(Effect& effect, const Doses& doses, const Matrix& precision, const HingeFit& bent) {
    effect.shape = Shape::kHinge;
    effect.slack = estimate_of(bent.slack, bent.interval.half_width() / 1.96, doses.freedom);
    effect.slack.interval = bent.interval;
    double low = bent.fit.k, high = bent.fit.k; // the slack's own uncertainty comes along
    for (const double slack : {bent.interval.low, bent.interval.high}) {
        const Fit edge = fit(doses, precision, hinge(doses, slack));
        low = std::min(low, edge.k);
        high = std::max(high, edge.k);
    }
    const double by_slack = (high - low) / 4;
    effect.beyond = estimate_from(bent.fit.k, bent.fit.variance + by_slack * by_slack, doses);
    effect.criticality = estimate_of(0, INFINITY, 0);
    const Doses below = up_to(doses, bent.interval.high);
    if (below.per_call.empty()) return;
    if (const auto weights = inverse(below.covariance)) {
        const Fit flat = fit(below, *weights, straight(below));
        effect.criticality = estimate_from(flat.k, flat.variance, doses);
    }
}

// Where a hinge fits better, though not by enough to be sure of it, small doses may do nothing.
void reach_to_none(Estimate& criticality) {
    for (Interval* interval : {&criticality.interval, &criticality.wide}) {
        interval->low = std::min(interval->low, 0.0);
        interval->high = std::max(interval->high, 0.0);
    }
}

// What a dose of the least slack does with any slack, none too, that the doses allow, the same in
// each unit or not: as far as the likelihood of all slacks and criticalities together reaches.
Interval allowed(const Doses& doses, const Matrix& precision, double least_slack, double chance) {
    struct Possible {
        double share = 1; // of the fit's criticality, which the least dose has
        Fit fit;
    };
    std::vector<Possible> fits = {{1, fit(doses, precision, straight(doses))}};
    for (const double spread : kSpreads)
        for (size_t step = 0; step <= kSlackSteps; ++step) {
            const double slack = slack_at(doses, step);
            const Fit bent = fit(doses, precision, hinge(doses, slack, spread));
            if (bent.k > 0) fits.push_back({left_of(least_slack, slack, spread), bent});
        }
    double best = INFINITY;
    for (const Possible& one : fits) best = std::min(best, one.fit.chi_square);
    const double gain = gain_of_one(chance, doses.pooled);
    Interval interval{INFINITY, -INFINITY};
    for (const auto& [share, one] : fits) {
        double left = gain - (one.chi_square - best);
        if (share == 1) left = std::max(left, 0.0); // only a hinge that is found rules the line out
        if (left < 0) continue;
        const double reach = std::sqrt(left * one.variance);
        interval.low = std::min(interval.low, share * (one.k - reach));
        interval.high = std::max(interval.high, share * (one.k + reach));
    }
    return interval;
}

// Where a slack is the rule a line is not taken for granted because it fits as well.
void allow_slacks(Effect& effect, const Doses& doses, const Matrix& precision) {
    Estimate& k = effect.criticality;
    k.interval = allowed(doses, precision, effect.least_slack, kSlackChance);
    k.wide = allowed(doses, precision, effect.least_slack, kMattersP);
}

Finding judge(const Effect& effect, const EffectLimits& limits) {
    const Estimate& k = effect.criticality;
    if (!(k.interval.half_width() < kSaysNothing)) return Finding::kSilent;
    if (std::abs(k.value) + kSafely * k.error < limits.matters) return Finding::kHidden;
    const bool matters = effect.shape == Shape::kLinear && !effect.may_be_hinge && k.p < kMattersP;
    return matters ? Finding::kMatters : Finding::kOpen;
}

// Of some doses of a target, the line, and how much better it gets where it may curve.
struct Straight {
    std::optional<Matrix> precision; // of the doses; none: they tell nothing
    Fit line;
    CurvedFit curved;

    double bend() const { return precision ? line.chi_square - curved.chi_square : 0; }
};

Straight fit_straight(const Doses& doses, const EffectLimits& limits) {
    Straight result;
    result.precision = precision_of(doses, 0, 0);
    for (int round = 0; round < 3 && result.precision; ++round) { // a call's cost goes with k
        result.line = fit(doses, *result.precision, straight(doses));
        result.precision = precision_of(doses, result.line.k, limits.call_error_ns);
    }
    if (!result.precision) return result;
    result.line = fit(doses, *result.precision, straight(doses));
    result.curved = fit_curved(doses, *result.precision);
    return result;
}

Effect effect_of(size_t target, const Doses& doses, const EffectLimits& limits) {
    Effect effect;
    effect.target = target;
    effect.freedom = doses.freedom;
    effect.criticality = estimate_of(0, INFINITY, 0);
    const Straight fitted = fit_straight(doses, limits);
    if (!fitted.precision) return effect;
    const Matrix& precision = *fitted.precision;
    const Fit& line = fitted.line;
    effect.criticality = estimate_from(line.k, line.variance, doses);
    effect.shape = effect.criticality.interval.contains(0) ? Shape::kFlat : Shape::kLinear;
    if (fitted.bend() > kCurvedGain && !limits.may_wait)
        effect.criticality = estimate_from(fitted.curved.k, fitted.curved.variance, doses);

    const double full = *std::max_element(doses.per_call.begin(), doses.per_call.end());
    const double call_errors = kCallErrors * limits.call_error_ns;
    effect.least_slack = std::max(call_errors, full * kSmallDose);
    const HingeFit bent = best_hinge(doses, precision);
    const double gain = line.chi_square - bent.fit.chi_square;
    if (gain > gain_of_two(kHingeChance, doses.pooled) && bent.interval.low > call_errors)
        bend(effect, doses, precision, bent);
    const double hinged = chi_square_beyond(doses, precision, effect.least_slack, limits.may_wait);
    if (effect.shape == Shape::kLinear && limits.may_wait)
        allow_slacks(effect, doses, precision);
    else if (effect.shape == Shape::kLinear && hinged < line.chi_square)
        reach_to_none(effect.criticality);
    // On one side: a larger slack would be seen the more.
    const double chance = limits.may_wait ? 2 * kWaitingP : kSlackChance;
    effect.may_be_hinge = hinged - line.chi_square < gain_of_one(chance, doses.pooled);
    effect.finding = judge(effect, limits);
    return effect;
}

// The deviate of the normal law that is as rare as this t.
double as_normal(double t, double freedom) {
    if (!(freedom > 0)) return 0;
    const double tail = cdf(complement(boost::math::students_t(freedom), t));
    return quantile(complement(boost::math::normal(), std::max(tail, 1e-300)));
}

// How far from a straight line a target's effect is seen to be with doses up to a level, of its own
// or together with others', in standard errors.
double bend_of(const Regression& regression, size_t target, size_t level,
               const EffectLimits& limits) {
    const double together =
        target < regression.together.size() ? regression.together[target][level] : 0;
    const Doses doses = doses_of(regression, target, level);
    const Straight alone = fit_straight(doses, limits);
    return std::max(together, as_normal(std::sqrt(std::max(0.0, alone.bend())), doses.pooled));
}

// The highest level with which no bend is seen.
size_t straight_level(const Regression& regression, size_t target, const EffectLimits& limits) {
    const double limit =
        limit_of(kBendChance, regression.together.size() * (regression.looked_at + 1));
    size_t level = kLevels;
    while (level > kLeastStraight && bend_of(regression, target, level, limits) > limit) --level;
    return level;
}

// Where large doses bend, smaller ones tell what the first ns do. A hinge is a bend that is
// explained: where it is, and how steep it is beyond, all doses tell.
Effect effect_of(const Regression& regression, size_t target, const EffectLimits& limits) {
    const Effect whole = effect_of(target, doses_of(regression, target, kLevels), limits);
    // What waits for others does not bend: it has a slack.
    if (limits.may_wait) return whole;
    const size_t level = straight_level(regression, target, limits);
    if (level == kLevels) return whole;
    Effect effect = effect_of(target, doses_of(regression, target, level), limits);
    if (whole.shape != Shape::kHinge) {
        // That large doses do less than in proportion shows there is no slack to use up.
        effect.may_be_hinge &= whole.may_be_hinge;
        effect.finding = judge(effect, limits);
        return effect;
    }
    effect.shape = Shape::kHinge;
    effect.slack = whole.slack;
    effect.beyond = whole.beyond;
    if (effect.finding == Finding::kMatters) effect.finding = Finding::kOpen;
    return effect;
}

} // namespace

std::string to_string(Finding finding) {
    switch (finding) {
        case Finding::kMatters:
            return "matters";
        case Finding::kHidden:
            return "hidden";
        case Finding::kOpen:
            return "open";
        case Finding::kSilent:
            return "says nothing";
    }
    return "says nothing";
}

std::vector<Effect> find_effects(const Regression& regression, const EffectLimits& limits) {
    std::vector<Effect> effects;
    for (size_t cell = 0; cell < regression.cells.size(); ++cell)
        if (cell == 0 || regression.cells[cell].target != regression.cells[cell - 1].target)
            effects.push_back(effect_of(regression, regression.cells[cell].target, limits));
    return effects;
}

bool bends(const Regression& regression, const EffectLimits& limits) {
    const size_t targets = regression.together.size();
    if (targets == 0) return false; // too few slices yet
    const double limit = limit_of(kAnewChance, targets * (regression.looked_at + 1));
    for (size_t target = 0; target < targets; ++target)
        if (bend_of(regression, target, kLevels, limits) > limit) return true;
    return false;
}

} // namespace speedbump::experiment
