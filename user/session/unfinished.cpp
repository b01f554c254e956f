// SPDX-License-Identifier: MIT
#include "session/unfinished.h"

#include <algorithm>

namespace speedbump::session {

namespace {

constexpr Clock::duration kFirstPause = std::chrono::milliseconds(100);
constexpr Clock::duration kLongestPause = std::chrono::seconds(10);

} // namespace

bool Unfinished::add(uint32_t tgid, ErrorKind kind) {
    State& state = states_[tgid];
    state.pause = std::clamp(2 * state.pause, kFirstPause, kLongestPause);
    state.next = Clock::now() + state.pause;
    return state.told.insert(kind).second;
}

void Unfinished::done(uint32_t tgid) {
    const auto state = states_.find(tgid);
    if (state == states_.end()) return;
    state->second.pause = {};
    state->second.next = Clock::time_point::max();
}

std::vector<uint32_t> Unfinished::due() const {
    std::vector<uint32_t> tgids;
    const auto now = Clock::now();
    for (const auto& [tgid, state] : states_)
        if (state.next <= now) tgids.push_back(tgid);
    return tgids;
}

std::optional<Clock::duration> Unfinished::until_next() const {
    auto next = Clock::time_point::max();
    for (const auto& [tgid, state] : states_) next = std::min(next, state.next);
    if (next == Clock::time_point::max()) return std::nullopt;
    return std::max<Clock::duration>(next - Clock::now(), Clock::duration(0));
}

} // namespace speedbump::session
