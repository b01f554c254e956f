// SPDX-License-Identifier: MIT
#include "session/reaper.h"

#include <utility>

namespace speedbump::session {

Reaper::~Reaper() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    wake_.notify_one();
    thread_.join();
}

void Reaper::release(engine::Attached attached) {
    if (!attached) return;
    {
        const std::lock_guard lock(mutex_);
        waiting_.push_back(std::move(attached));
    }
    wake_.notify_one();
}

void Reaper::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
        if (waiting_.empty()) return;
        std::vector<engine::Attached> batch = std::exchange(waiting_, {});
        lock.unlock();
        engine_.release(std::move(batch));
        lock.lock();
    }
}

} // namespace speedbump::session
