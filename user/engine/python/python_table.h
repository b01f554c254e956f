// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "abi.h"
#include "engine/engine.h"
#include "engine/schedule.h"
#include "util/fd.h"
#include "util/result.h"

namespace speedbump::engine {

// The session's end of the table that it shares with every interpreter it has hooked (bpf/abi.h):
// settings by line of the targets file, which only the loader can write, and counters by process,
// which the targets write and which are read as numbers only. The creating thread owns the table:
// when that thread dies, also by SIGKILL, the kernel says so in the settings and the hooks remove
// themselves. Destruction, on that same thread, closes the table for good.
class PythonTable {
  public:
    // kInvalid: this thread owns a table already. kUnsupported: too many lines.
    static Result<std::unique_ptr<PythonTable>> create(uint32_t lines, uint32_t columns = 0);
    ~PythonTable();
    PythonTable(const PythonTable&) = delete;
    PythonTable& operator=(const PythonTable&) = delete;

    // The memfds to hand to interpreters. Nobody can map the first for writing any more, and
    // neither can change its size.
    int settings_fd() const { return settings_fd_.get(); }
    int counters_fd() const { return counters_fd_.get(); }

    void arm(bool armed);
    // From now on only who tells functions apart by this grouping delays and counts.
    void set_grouping(uint64_t number);
    uint32_t* armed_word() { return &settings().armed; }
    // As BpfEngine::configure, by line index.
    void configure(uint32_t line, const TargetSettings& settings, uint64_t window_origin_ns);

    // nullptr when there are no columns.
    Schedule* schedule() { return schedule_.get(); }

    // The process that a writer is, given as it sees itself: the number of its PID namespace and
    // its PID there. Both are what the target says. 0: not known.
    using ProcessOf = std::function<pid_t(uint32_t pid_namespace, pid_t pid)>;
    // Per line and process since the table was made.
    std::vector<Counts> read_counts(const ProcessOf& process_of) const;
    uint64_t lost_counts() const;

  private:
    PythonTable() = default;
    sb_settings& settings() const { return *static_cast<sb_settings*>(settings_); }
    const sb_slot* slot(uint32_t index) const;
    void make_schedule();

    uint32_t lines_ = 0;
    uint32_t slots_ = 0;
    uint32_t columns_ = 0;
    uint32_t armed_as_ = SB_ARMED(0);
    Fd settings_fd_;
    Fd counters_fd_;
    void* settings_ = nullptr;       // writable
    const void* counters_ = nullptr; // read-only: what is there is the targets'
    std::unique_ptr<Schedule> schedule_;
};

} // namespace speedbump::engine
