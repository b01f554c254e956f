// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/bpf/bpf_engine.h"
#include "session/members.h"
#include "util/result.h"

namespace speedbump::session {

// What BPF has counted in the processes of the tree, those that have ended included. Where the
// counters can't be read, what they said last stands, whole, and nothing is forgotten meanwhile.
class TreeCounts {
  public:
    // Reads the counters anew. `warn` is told when that fails, once until it works again.
    void refresh(engine::BpfEngine& bpf, Members& members,
                 const std::function<void(const std::string&)>& warn);
    const std::vector<engine::Counts>& latest() const { return latest_; }
    // Why the latest counts are not those of the last refresh().
    const std::optional<Error>& failure() const { return failure_; }

  private:
    std::vector<engine::Counts> latest_;
    std::optional<Error> failure_;
};

} // namespace speedbump::session
