// SPDX-License-Identifier: MIT
#include "experiment/model/effects.h"

#include <algorithm>
#include <cmath>

namespace speedbump::experiment {

namespace {

constexpr size_t kSlackSteps = 120;
constexpr double kHingeGain = 9.21;    // chi square, 1 % with 2 degrees of freedom
constexpr double kSlackGain = 3.84;    // chi square, 5 % with 1 degree of freedom
constexpr double kCurvedGain = 9;      // chi square: three standard errors
constexpr double kSafely = 4.5;        // standard errors: a wrong "hidden" is the worst answer
constexpr double kCallErrors = 3;      // a slack below as many may be an error of the call's cost
constexpr double kSaysNothing = 0.5;   // half width
constexpr double kSmallDose = 1.0 / 8; // of the full dose
constexpr double kMattersP = 0.01;

// The criticality of each dose of one target.
struct Doses {
    std::vector<double> per_call;
    Matrix value{0, 1};
    Matrix covariance{0, 0};
    double freedom = 0;
};

Doses doses_of(const Regression& regression, size_t target) {
    std::vector<size_t> members;
    for (size_t cell = 0; cell < regression.cells.size(); ++cell)
        if (regression.cells[cell].target == target) members.push_back(cell);
    Doses doses;
    doses.value = Matrix(members.size(), 1);
    doses.covariance = Matrix(members.size(), members.size());
    doses.freedom = static_cast<double>(regression.blocks - 1);
    for (size_t a = 0; a < members.size(); ++a) {
        doses.per_call.push_back(regression.cells[members[a]].per_call);
        doses.value(a, 0) = regression.cells[members[a]].criticality;
        for (size_t b = 0; b < members.size(); ++b)
            doses.covariance(a, b) = regression.covariance(members[a], members[b]);
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

std::vector<double> hinge(const Doses& doses, double slack) {
    std::vector<double> shape;
    for (const double dose : doses.per_call) shape.push_back(std::max(0.0, 1 - slack / dose));
    return shape;
}

// From a quarter of the smallest dose to near the largest, in equal ratios.
double slack_at(const Doses& doses, size_t step) {
    const auto [smallest, largest] =
        std::minmax_element(doses.per_call.begin(), doses.per_call.end());
    const double low = *smallest / 4, high = *largest * 0.9;
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
    for (size_t step = 0; step <= kSlackSteps; ++step) {
        if (fits[step].k <= 0 || fits[step].chi_square > best.fit.chi_square + kSlackGain) continue;
        best.interval.low = std::min(best.interval.low, slack_at(doses, step));
        best.interval.high = std::max(best.interval.high, slack_at(doses, step));
    }
    return best;
}

// The best that a hinge with a slack above `min` can do.
double chi_square_beyond(const Doses& doses, const Matrix& precision, double min) {
    double best = INFINITY;
    for (size_t step = 0; step <= kSlackSteps; ++step) {
        const double slack = slack_at(doses, step);
        if (slack < min) continue;
        best = std::min(best, fit(doses, precision, hinge(doses, slack)).chi_square);
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

Finding judge(const Effect& effect, const EffectLimits& limits, bool may_be_hinge) {
    const Estimate& k = effect.criticality;
    if (!(k.interval.half_width() < kSaysNothing)) return Finding::kSilent;
    if (std::abs(k.value) + kSafely * k.error < limits.matters) return Finding::kHidden;
    const bool matters = effect.shape == Shape::kLinear && !may_be_hinge && k.p < kMattersP;
    return matters ? Finding::kMatters : Finding::kOpen;
}

Effect effect_of(const Regression& regression, size_t target, const EffectLimits& limits) {
    Effect effect;
    effect.target = target;
    effect.criticality = estimate_of(0, INFINITY, 0);
    const Doses doses = doses_of(regression, target);
    auto precision = precision_of(doses, 0, 0);
    Fit line;
    for (int round = 0; round < 3 && precision; ++round) { // what a call's cost does goes with k
        line = fit(doses, *precision, straight(doses));
        precision = precision_of(doses, line.k, limits.call_error_ns);
    }
    if (!precision) return effect;
    line = fit(doses, *precision, straight(doses));
    effect.criticality = estimate_from(line.k, line.variance, doses);
    effect.shape = effect.criticality.interval.contains(0) ? Shape::kFlat : Shape::kLinear;
    const CurvedFit curved = fit_curved(doses, *precision);
    if (line.chi_square - curved.chi_square > kCurvedGain)
        effect.criticality = estimate_from(curved.k, curved.variance, doses);

    const double full = *std::max_element(doses.per_call.begin(), doses.per_call.end());
    const double call_errors = kCallErrors * limits.call_error_ns;
    effect.least_slack = std::max(call_errors, full * kSmallDose);
    const HingeFit bent = best_hinge(doses, *precision);
    if (line.chi_square - bent.fit.chi_square > kHingeGain && bent.interval.low > call_errors)
        bend(effect, doses, *precision, bent);
    const double hinged = chi_square_beyond(doses, *precision, effect.least_slack);
    if (effect.shape == Shape::kLinear && hinged < line.chi_square)
        reach_to_none(effect.criticality);
    effect.finding = judge(effect, limits, hinged - line.chi_square < kSlackGain);
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

} // namespace speedbump::experiment
