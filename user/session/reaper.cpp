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
        ++released_;
    }
    wake_.notify_one();
}

uint64_t Reaper::released() const {
    const std::lock_guard lock(mutex_);
    return released_;
}

bool Reaper::are_out(uint64_t first) const {
    const std::lock_guard lock(mutex_);
    return out_ >= first;
}

void Reaper::wait() const {
    std::unique_lock lock(mutex_);
    all_out_.wait(lock, [this] { return out_ == released_; });
}

void Reaper::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
        if (waiting_.empty()) return;
        std::vector<engine::Attached> batch = std::exchange(waiting_, {});
        const size_t count = batch.size();
        lock.unlock();
        engine_.release(std::move(batch));
        lock.lock();
        out_ += count;
        all_out_.notify_all();
    }
}

} // namespace speedbump::session
