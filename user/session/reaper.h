// SPDX-License-Identifier: MIT
#pragma once

#include <condition_variable>
#include <cstdint>
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
    // How many were given to release() so far, and of how many the first ones are out.
    uint64_t released() const;
    bool are_out(uint64_t first) const;
    // Waits until all that were given are out.
    void wait() const;

  private:
    void work();

    engine::ProbeEngine& engine_;
    mutable std::mutex mutex_;
    std::condition_variable wake_;
    mutable std::condition_variable all_out_;
    std::vector<engine::Attached> waiting_;
    uint64_t released_ = 0;
    uint64_t out_ = 0;
    bool stop_ = false;
    std::thread thread_; // last: starts when all else is there
};

} // namespace speedbump::session
