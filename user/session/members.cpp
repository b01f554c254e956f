// SPDX-License-Identifier: MIT
#include "session/members.h"

namespace speedbump::session {

Member& Members::add(Member member) {
    living_[member.pid] = member.tgid;
    return members_[member.tgid] = std::move(member);
}

Member* Members::find(uint32_t tgid) {
    const auto found = members_.find(tgid);
    return found == members_.end() ? nullptr : &found->second;
}

Member* Members::find_pid(pid_t pid) {
    const auto found = living_.find(pid);
    return found == living_.end() ? nullptr : find(found->second);
}

void Members::ended(Member& member) {
    if (!member.alive) return;
    member.alive = false;
    member.files.clear();
    const auto living = living_.find(member.pid);
    if (living != living_.end() && living->second == member.tgid) living_.erase(living);
    dead_.push_back(member.tgid);
}

void Members::add_to(Sums& sums, Key key, const engine::Counts& counts) {
    engine::Counts& to = sums[key];
    to.target = key.target;
    to += counts;
}

bool Members::has_counts(uint32_t tgid) const {
    const auto first = folded_.lower_bound({tgid, 0});
    return first != folded_.end() && first->first.tgid == tgid;
}

void Members::merge(uint32_t tgid) {
    for (auto it = folded_.lower_bound({tgid, 0}); it != folded_.end() && it->first.tgid == tgid;) {
        add_to(folded_, {0, it->first.target}, it->second);
        it = folded_.erase(it);
    }
}

std::vector<engine::Counts> Members::fold(
    const std::vector<engine::Counts>& read,
    const std::function<void(uint32_t target, uint32_t tgid)>& forget) {
    std::vector<engine::Counts> living;
    for (const engine::Counts& counts : read) {
        const Key key{static_cast<uint32_t>(counts.process), counts.target};
        const Member* member = find(key.tgid);
        if (member && !member->alive) {
            add_to(folded_, key, counts);
            forget(key.target, key.tgid);
        } else {
            living.push_back(counts);
        }
    }
    std::deque<uint32_t> kept;
    for (const uint32_t tgid : dead_) {
        const Member* member = find(tgid);
        if (!member || member->alive) continue; // another process has the number now
        if (has_counts(tgid))
            kept.push_back(tgid);
        else
            members_.erase(tgid);
    }
    for (; kept.size() > kDeadKept; kept.pop_front()) {
        merge(kept.front());
        members_.erase(kept.front());
    }
    dead_ = std::move(kept);

    Sums sums = folded_;
    for (const engine::Counts& counts : living)
        add_to(sums, {static_cast<uint32_t>(counts.process), counts.target}, counts);
    std::vector<engine::Counts> result;
    result.reserve(sums.size());
    for (auto& [key, counts] : sums) {
        const Member* member = find(key.tgid);
        counts.process = member ? member->pid : static_cast<pid_t>(key.tgid);
        result.push_back(counts);
    }
    return result;
}

} // namespace speedbump::session
