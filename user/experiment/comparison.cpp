// SPDX-License-Identifier: MIT
#include "experiment/comparison.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "experiment/analysis.h"

namespace speedbump::experiment {

namespace {

// What the first ns do, which is what a gain is worth: nothing where a slack absorbs them, and not
// known where there may be one.
Estimate of_first_ns(const TargetResult& result) {
    if (result.shape.shape != Shape::kHinge) return result.shape.slope;
    return result.verdict == Verdict::kHidden ? estimate_of(0, 0, 1)
                                              : estimate_of(result.shape.slope.value, 0, 0);
}

} // namespace

Result<std::vector<CommonPoint>> common_points(const Document& a, const Document& b) {
    const auto names_of = [](const Document& document) {
        std::vector<std::string> names;
        for (size_t point = 0; point < document.progress.size(); ++point)
            names.push_back(progress_name(document, point));
        return names;
    };
    const std::vector<std::string> in_a = names_of(a), in_b = names_of(b);
    std::vector<CommonPoint> common;
    for (size_t point = 0; point < in_a.size(); ++point) {
        const auto found = std::find(in_b.begin(), in_b.end(), in_a[point]);
        if (found != in_b.end())
            common.push_back({in_a[point], point, static_cast<size_t>(found - in_b.begin())});
    }
    if (common.empty())
        return make_error(
            ErrorKind::kInvalid,
            fmt::format("the two have no progress point in common: a has {}, b has {}",
                        fmt::join(in_a, ", "), fmt::join(in_b, ", ")));
    return common;
}

Result<Comparison> compare(const Document& a, const Document& b) {
    const auto common = common_points(a, b);
    if (!common) return common.error();
    const CommonPoint& point = common->front();
    const ProgressResult result_a = examine_progress(a, point.in_a);
    const ProgressResult result_b = examine_progress(b, point.in_b);
    Comparison comparison;
    comparison.progress = point.name;
    comparison.period_a = result_a.period;
    comparison.period_b = result_b.period;
    std::map<std::string, const TargetResult*> targets_b;
    for (const TargetResult& target : result_b.targets)
        targets_b[b.targets[target.target].name] = &target;
    std::vector<double> p;
    for (const TargetResult& target : result_a.targets) {
        const std::string& name = a.targets[target.target].name;
        const auto other = targets_b.find(name);
        if (other == targets_b.end()) {
            comparison.only_a.push_back(name);
            continue;
        }
        const TargetResult& found = *other->second;
        targets_b.erase(other);
        if (target.blocks == 0 || found.blocks == 0) continue;
        // Beyond their slacks where both have one: with a line that can't be compared.
        const bool both_bend =
            target.shape.shape == Shape::kHinge && found.shape.shape == Shape::kHinge;
        const Estimate in_a = both_bend ? target.shape.slope : of_first_ns(target);
        const Estimate in_b = both_bend ? found.shape.slope : of_first_ns(found);
        const Estimate change = difference(in_a, target.blocks, in_b, found.blocks);
        comparison.targets.push_back({name, in_a, in_b, change, change.p});
        p.push_back(change.p);
    }
    for (const auto& [name, target] : targets_b) comparison.only_b.push_back(name);
    const std::vector<double> corrected = holm(p);
    for (size_t i = 0; i < corrected.size(); ++i) comparison.targets[i].p = corrected[i];
    return comparison;
}

} // namespace speedbump::experiment
