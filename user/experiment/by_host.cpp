// SPDX-License-Identifier: MIT
#include "experiment/by_host.h"

#include <algorithm>

namespace speedbump::experiment {

std::vector<HostResult> examine_hosts(const Document& document, const ProgressResult& progress) {
    std::vector<HostResult> results;
    for (size_t host = 0; host < document.fleet->hosts.size(); ++host) {
        HostResult& result = results.emplace_back();
        result.host = host;
        if (document.fleet->each) {
            result.period = progress.period;
            for (const TargetResult& target : progress.targets)
                if (document.targets[target.target].host == host) result.targets.push_back(target);
        } else if (const auto alone = document_of(document, host)) {
            Results by_itself = analyse(*alone);
            result.period = by_itself.progress[0].period;
            result.targets = std::move(by_itself.progress[0].targets);
        }
        std::sort(result.targets.begin(), result.targets.end(),
                  [](const auto& a, const auto& b) { return a.target < b.target; });
    }
    return results;
}

} // namespace speedbump::experiment
