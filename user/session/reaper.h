// SPDX-License-Identifier: MIT
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/bpf/bpf_engine.h"

namespace speedbump::session {

// Takes probes out on a thread of its own, since that waits for the kernel's grace period and the
// session must go on hearing of new processes meanwhile. Destruction waits until all are out.
class Reaper {
  public:
    Reaper() : thread_([this] { work(); }) {}
    Reaper(const Reaper&) = delete;
    Reaper& operator=(const Reaper&) = delete;
    ~Reaper();

    void release(engine::Links links);

  private:
    void work();

    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<engine::Links> waiting_;
    bool stop_ = false;
    std::thread thread_; // last: starts when all else is there
};

} // namespace speedbump::session
