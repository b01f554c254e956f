// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/features.h"
#include "tree/process_tree.h"
#include "util/result.h"

namespace speedbump::engine::inprocess {

// What the engine needs of a session besides.
class InprocessProbes : public ProbeEngine {
  public:
    // The tree whose members attach() is to delay; must outlive this.
    virtual void follow(tree::ProcessTree& tree) = 0;
    virtual void follow_children(bool follow) = 0;
};

// The engine that puts jumps into functions, in the processes themselves. Only while this program
// has one thread: a process is forked that deals with what is left should this one be killed.
// `columns`: of its schedule; 0: it has none. `warn` is told what could not be taken out of
// processes.
Result<std::unique_ptr<InprocessProbes>> open(uint32_t columns,
                                              std::function<void(const std::string&)> warn);

// What a jump costs on this host, and how right delays are.
Result<CalibrationRow> measure_accuracy(const std::vector<nanoseconds>& delays);

} // namespace speedbump::engine::inprocess
