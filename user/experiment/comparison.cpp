// SPDX-License-Identifier: MIT
#include "experiment/comparison.h"

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

Result<Comparison> compare(const Document& a, const Document& b) {
    const auto find = [](const auto& list, const auto& value) {
        return std::find(list.begin(), list.end(), value);
    };
    const auto common = std::find_if(a.progress.begin(), a.progress.end(), [&](const auto& name) {
        return find(b.progress, name) != b.progress.end();
    });
    if (common == a.progress.end())
        return make_error(ErrorKind::kInvalid, "the two have no progress point in common");
    const auto of = [&](const Document& document) {
        const auto place = find(document.progress, *common) - document.progress.begin();
        return examine_progress(document, static_cast<size_t>(place));
    };
    const ProgressResult result_a = of(a), result_b = of(b);
    Comparison comparison;
    comparison.progress = *common;
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
