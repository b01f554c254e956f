// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/inprocess/hook.h"
#include "engine/inprocess/trampoline.h"
#include "engine/schedule.h"
#include "util/fd.h"
#include "util/result.h"

namespace speedbump::engine::inprocess {

// What hooks stamp hits by.
enum class ClockSource : uint8_t { kTsc, kVdso };

// One of these clocks against this program's own.
struct Ticks {
    ClockSource source = ClockSource::kTsc;
    double per_ns = 0;
    uint64_t origin_ticks = 0;
    uint64_t origin_ns = 0; // monotonic_ns()

    uint64_t at(uint64_t monotonic) const;
    nanoseconds duration(uint64_t ticks) const;
    uint64_t now() const;
    // Of both clocks now, and of their pace since this was measured; where that is out of all
    // reason, as when the machine slept, of the pace as it was.
    Ticks measured_again() const;
};
// Of the time stamp counter where the kernel trusts it, else of the vDSO where that reads the
// kernel's clock without a system call; kUnsupported where neither is so.
Result<Ticks> measure_ticks(bool may_be_tsc = true);
// The clock of a process for its hooks; kUnsupported as of vdso_clock_of().
Result<ClockFunction> clock_of(pid_t pid, ClockSource source);

// The settings that all hooks of a session read, in memory that only the loader can write; they end
// with the loader, however it ends. And what hooks of all processes count together, which is
// theirs to write: numbers for the loader and nothing else.
class Table {
  public:
    // `columns`: of its schedule; 0: it has none.
    static Result<std::unique_ptr<Table>> create(const Ticks& ticks, uint32_t columns);
    ~Table();
    Table(const Table&) = delete;
    Table& operator=(const Table&) = delete;

    // Until then no delay can be armed. Starts a thread, whose end the kernel tells the hooks.
    Result<void> own();
    int fd() const { return fd_.get(); }
    int common_fd() const { return common_fd_.get(); }
    ino_t inode() const { return inode_; }
    const Extent& extent() const { return extent_; }
    ClockSource clock_source() const { return ticks_.source; }
    HookSettings& settings() { return *static_cast<HookSettings*>(memory_); }
    HookTarget* targets() { return reinterpret_cast<HookTarget*>(&settings() + 1); }

    // Delays in flight end with `armed_word()`, which a signal handler may clear, too.
    void arm(bool armed);
    uint32_t* armed_word() { return &settings().armed; }
    // kUnsupported: its `thread` is one too many.
    Result<void> configure(uint32_t target, const TargetSettings& settings, uint64_t armed_at_ns);
    // Has hooks go by the monotonic clock as it is now: it is made faster and slower (NTP).
    void set_clock();
    Schedule* schedule() { return schedule_.get(); } // nullptr: no columns

  private:
    Table() = default;
    Result<void> map();
    void set_state(uint32_t target);
    void measure_again();
    Result<uint64_t> thread_number(const std::optional<targets::Pattern>& thread);

    Ticks ticks_;
    std::vector<std::string> threads_; // the globs of those
    std::set<uint32_t> configured_;    // targets
    Extent extent_;
    std::set<uint32_t> windowed_; // targets that begin or end by the clock
    Fd fd_, common_fd_;
    ino_t inode_ = 0;
    void* memory_ = nullptr;
    const std::byte* common_ = nullptr;
    std::unique_ptr<Schedule> schedule_; // in `memory_`
    std::thread owner_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool has_tried_ = false;
    bool is_over_ = false;
};

} // namespace speedbump::engine::inprocess
