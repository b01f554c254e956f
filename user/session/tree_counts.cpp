// SPDX-License-Identifier: MIT
#include "session/tree_counts.h"

#include <utility>

namespace speedbump::session {

void TreeCounts::refresh(engine::ProbeEngine& probes, engine::HookEngine* hooks, Members& members,
                         const Warn& warn) {
    std::optional<Error> failure;
    if (auto read = probes.read_counts())
        probed_ = members.fold(*read, [&probes](uint32_t target, uint32_t tgid) {
            probes.forget_counts(target, tgid);
        });
    else
        failure = std::move(read).error();
    if (hooks) {
        if (auto read = hooks->read_counts())
            hooked_ = std::move(*read);
        else
            failure = std::move(read).error();
    }
    if (failure && !failure_)
        warn("calls and delays are shown as they were last read: " + failure->message);
    failure_ = std::move(failure);
}

std::vector<engine::Counts> TreeCounts::latest() const {
    std::vector<engine::Counts> all = probed_;
    all.insert(all.end(), hooked_.begin(), hooked_.end());
    return all;
}

std::vector<engine::Counts> TreeCounts::totals(size_t targets) const {
    std::vector<engine::Counts> sums(targets);
    for (uint32_t target = 0; target < targets; ++target) sums[target].target = target;
    for (const auto* read : {&probed_, &hooked_})
        for (const engine::Counts& counts : *read)
            if (counts.target < targets) sums[counts.target] += counts;
    return sums;
}

} // namespace speedbump::session
