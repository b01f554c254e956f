// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "../bpf/progress.h"
#include "experiment/document.h"

namespace speedbump::experiment {

// What the calls at a device's interface tell of its queues: a pure follower of events. What has
// been launched is known to be done when somebody has waited for it, and only then. All values in
// them are the target's, and numbers only. Not thread-safe.
class DeviceQueues {
  public:
    // In the order in which they happened.
    void take(const sb_device_event& event);
    // Some events have been lost: nothing is known until somebody waits again.
    void forget_all(uint64_t now_ns);
    // Of processes that have ended there is nothing to be known any more.
    void keep_only(const std::set<uint32_t>& alive, uint64_t now_ns);

    // Since it began, up to now, which lies after all events so far; most_queued: in this time.
    DeviceReading totals(uint64_t now_ns) const;

  private:
    struct Queue {
        uint64_t last = 0; // launch, by its number in the process
        uint64_t done = 0; // launches of this queue up to this number are done
        uint64_t launched_ns = 0;
        uint64_t count = 0, done_count = 0; // launches, and those done, since it was empty last
        bool held = false;                  // the last launch was, by a full queue
    };
    // What an event lies behind, or a call waits for.
    struct Mark {
        uint64_t queue = 0;
        uint64_t last = 0;
        uint64_t launched_ns = 0;
        uint64_t count = 0;
    };
    struct Open { // a call that has not ended
        uint64_t begin_ns = 0;
        uint32_t tid = 0;
        uint32_t actions = 0;
        std::optional<Mark> mark; // of a wait: none where it is of everything, or unknown
        bool of_all = false;
        bool of_empty = false;   // a launch when nothing was queued
        uint64_t full_since = 0; // a launch: if it was held, the queue was not empty since then
    };
    struct Process {
        uint64_t launches = 0;
        uint64_t all_done = 0; // launches of all queues up to this number are done
        uint64_t launched_ns = 0;
        size_t busy = 0; // queues with launches that are not known to be done
        std::map<uint64_t, Queue> queues;
        std::map<uint64_t, Mark> events;
        std::map<uint64_t, Open> open; // by place
        size_t waiting = 0;            // calls
        uint64_t waiting_since = 0;
        uint64_t watched_since = 0; // 0: what is queued is not known
        uint64_t idle_since = 0;    // 0: something is queued, or that is not known
        uint64_t covered = 0;       // up to there it is decided what was idle and what was busy
    };

    static bool is_busy(const Process& process, const Queue& queue);
    void launch(Process& process, const sb_device_event& event);
    void begin_wait(Process& process, const sb_device_event& event);
    void end(Process& process, const sb_device_event& event);
    void end_launch(Process& process, const Open& call, uint64_t now);
    void end_wait(Process& process, const Open& call, uint64_t now);
    void void_calls_below(Process& process, const sb_device_event& event);
    void drop_call(Process& process, uint64_t now);
    void prove_busy(Process& process, uint64_t from, uint64_t to);
    static void close(const Process& process, uint64_t now, DeviceReading& totals);
    uint64_t usual_launch() const;

    std::map<uint32_t, Process> processes_;
    DeviceReading totals_;               // without what goes on
    std::deque<uint64_t> free_launches_; // how long launches took when nothing was queued
};

} // namespace speedbump::experiment
