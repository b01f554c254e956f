// SPDX-License-Identifier: MIT
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace speedbump::session {

// Takes probes out on a thread of its own, since that waits for the kernel's grace period and the
// session must go on hearing of new processes meanwhile. Destruction waits until all are out.
class Reaper {
  public:
    // The engine whose probes these are must outlive it.
    explicit Reaper(engine::ProbeEngine& engine) : engine_(engine), thread_([this] { work(); }) {}
    Reaper(const Reaper&) = delete;
    Reaper& operator=(const Reaper&) = delete;
    ~Reaper();

    void release(engine::Attached attached);

  private:
    void work();

    engine::ProbeEngine& engine_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<engine::Attached> waiting_;
    bool stop_ = false;
    std::thread thread_; // last: starts when all else is there
};

} // namespace speedbump::session
