// SPDX-License-Identifier: MIT
#include "experiment/plan.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace speedbump::experiment {

std::vector<Arm> arms_of_block(const Document& document, const std::vector<size_t>& targets,
                               bool with_off, size_t block) {
    std::vector<Arm> arms = {{ArmKind::kSham, 0, {}}};
    // Every target's effect is against these: the more targets, the more exact they must be.
    const auto probes = static_cast<size_t>(std::sqrt(static_cast<double>(targets.size())));
    arms.insert(arms.end(), std::max<size_t>(probes, 1), {ArmKind::kProbe, 0, {}});
    if (with_off) arms.push_back({ArmKind::kOff, 0, {}});
    for (const size_t target : targets)
        for (const nanoseconds dose : document.targets[target].doses)
            arms.push_back({ArmKind::kDose, target, dose});
    // std::shuffle differs between libraries.
    std::mt19937_64 random(document.seed + block * 0x9e3779b97f4a7c15u);
    for (size_t i = arms.size() - 1; i > 0; --i) std::swap(arms[i], arms[random() % (i + 1)]);
    return arms;
}

std::vector<nanoseconds> doses_up_to(nanoseconds top) {
    std::vector<nanoseconds> doses;
    for (int quarter = 1; quarter <= 4; ++quarter) {
        const double exact = static_cast<double>(top.count()) * quarter / 4;
        const double unit = std::pow(10, std::floor(std::log10(std::max(exact, 10.0))) - 1);
        const nanoseconds dose(static_cast<int64_t>(std::round(exact / unit) * unit));
        if (dose.count() > 0 && (doses.empty() || dose > doses.back())) doses.push_back(dose);
    }
    return doses;
}

} // namespace speedbump::experiment
