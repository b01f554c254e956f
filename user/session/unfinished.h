// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "util/clock.h"
#include "util/result.h"

namespace speedbump::session {

// Members (by tgid) that could not be looked at, or not be given all their probes, though they
// live: when they are tried again, and what was told of them.
class Unfinished {
  public:
    // It has failed, again perhaps. True when that is to be told: once per process and kind.
    bool add(uint32_t tgid, ErrorKind kind);
    // All of it is in place.
    void done(uint32_t tgid);
    // The process has ended.
    void forget(uint32_t tgid) { states_.erase(tgid); }
    // Whose time has come; each is to be tried now, and add()ed or done().
    std::vector<uint32_t> due() const;
    // Until the next of them; nullopt: there is none.
    std::optional<Clock::duration> until_next() const;

  private:
    struct State {
        std::set<ErrorKind> told{};
        Clock::duration pause{};
        Clock::time_point next = Clock::time_point::max();
    };
    std::map<uint32_t, State> states_;
};

} // namespace speedbump::session
