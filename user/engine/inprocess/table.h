// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/engine.h"
#include "engine/inprocess/hook.h"
#include "util/fd.h"
#include "util/result.h"

namespace speedbump::engine::inprocess {

// The time stamp counter of this machine.
struct Ticks {
    double per_ns = 0;
    uint64_t origin_ticks = 0;
    uint64_t origin_ns = 0; // monotonic_ns()

    uint64_t at(uint64_t monotonic) const;
    nanoseconds duration(uint64_t ticks) const;
    static uint64_t now();
};
// kUnsupported where it is not the same on all CPUs, or stops.
Result<Ticks> measure_ticks();

// The settings that all hooks of a session read, in memory that only the loader can write. They end
// with the loader, however it ends.
class Table {
  public:
    static Result<std::unique_ptr<Table>> create(const Ticks& ticks);
    ~Table();
    Table(const Table&) = delete;
    Table& operator=(const Table&) = delete;

    // Until then no delay can be armed. Starts a thread, whose end the kernel tells the hooks.
    Result<void> own();
    int fd() const { return fd_.get(); }
    ino_t inode() const { return inode_; }
    HookSettings& settings() { return *static_cast<HookSettings*>(memory_); }
    HookTarget* targets() { return reinterpret_cast<HookTarget*>(&settings() + 1); }

    void arm(bool armed);
    void configure(uint32_t target, const TargetSettings& settings, uint64_t armed_at_ns);

  private:
    Table() = default;
    Ticks ticks_;
    Fd fd_;
    ino_t inode_ = 0;
    void* memory_ = nullptr;
    std::thread owner_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool has_tried_ = false;
    bool is_over_ = false;
};

} // namespace speedbump::engine::inprocess
