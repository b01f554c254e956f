// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <vector>

#include "engine/engine.h"
#include "session/members.h"
#include "session/warn.h"
#include "util/result.h"

namespace speedbump::session {

// What the engines have counted in the processes of the tree, those that have ended included. Where
// the counters of one can't be read, what they said last stands, whole, and nothing is forgotten
// meanwhile.
class TreeCounts {
  public:
    // Reads the counters anew. `warn` is told when that fails, once until it works again.
    // `hooks`: nullptr when there are none.
    void refresh(engine::ProbeEngine& probes, engine::HookEngine* hooks, Members& members,
                 const Warn& warn);
    std::vector<engine::Counts> latest() const;
    // The same, summed up over processes: one for each of so many targets, by index.
    std::vector<engine::Counts> totals(size_t targets) const;
    // Why the latest counts are not those of the last refresh().
    const std::optional<Error>& failure() const { return failure_; }

  private:
    std::vector<engine::Counts> probed_;
    std::vector<engine::Counts> hooked_;
    std::optional<Error> failure_;
};

} // namespace speedbump::session
