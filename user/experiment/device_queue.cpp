// SPDX-License-Identifier: MIT
#include "experiment/device_queue.h"

#include <algorithm>

namespace speedbump::experiment {

namespace {

// What a target could make grow without end: it is forgotten, and the process begins anew.
constexpr size_t kMaxQueues = 4096, kMaxEvents = 65536, kMaxOpen = 4096;
// A wait that took as long found the device at work: one that does not have to wait takes less.
constexpr uint64_t kBlocked = 50'000;
// A launch that took so much longer than usual was held by a full queue.
constexpr uint64_t kHeldFactor = 4, kHeldMore = 10'000;
constexpr size_t kUsualLaunches = 65; // the last ones

nanoseconds time_of(uint64_t ns) {
    return nanoseconds(static_cast<int64_t>(ns));
}

uint64_t between(uint64_t from, uint64_t to) {
    return to > from ? to - from : 0;
}

} // namespace

bool DeviceQueues::is_busy(const Process& process, const Queue& queue) {
    return queue.last > std::max(queue.done, process.all_done);
}

void DeviceQueues::take(const sb_device_event& event) {
    Process& process = processes_[event.tgid];
    if (process.queues.size() > kMaxQueues || process.events.size() > kMaxEvents ||
        process.open.size() > kMaxOpen) {
        close(process, event.at_ns, totals_);
        process = Process();
    }
    if (event.begin_ns != 0) return end(process, event);
    void_calls_below(process, event);
    if ((event.actions & SB_PROGRESS_LAUNCHES) != 0) {
        launch(process, event);
    } else if ((event.actions & SB_PROGRESS_RECORDS) != 0) {
        const Queue& queue = process.queues[event.queue];
        process.events[event.event] = {event.queue, queue.last, queue.launched_ns, queue.count};
    } else if ((event.actions & SB_PROGRESS_WAITS) != 0) {
        begin_wait(process, event);
    }
}

// A call at this place of the thread's stack: those that lay there or below have been left without
// a return that was seen (an exception, a call in place of a return).
void DeviceQueues::void_calls_below(Process& process, const sb_device_event& event) {
    for (auto one = process.open.begin(); one != process.open.end() && one->first <= event.place;) {
        if (one->second.tid != event.tid) {
            ++one;
            continue;
        }
        if ((one->second.actions & SB_PROGRESS_LAUNCHES) == 0) drop_call(process, event.at_ns);
        one = process.open.erase(one);
    }
}

void DeviceQueues::drop_call(Process& process, uint64_t now) {
    if (--process.waiting == 0) totals_.wait += time_of(between(process.waiting_since, now));
}

void DeviceQueues::launch(Process& process, const sb_device_event& event) {
    ++totals_.launches;
    const bool of_empty = process.idle_since != 0;
    if (of_empty) {
        totals_.idle += time_of(between(process.idle_since, event.at_ns));
        process.covered = event.at_ns;
        process.idle_since = 0;
    }
    Queue& queue = process.queues[event.queue];
    if (!is_busy(process, queue)) {
        ++process.busy;
        queue.count = queue.done_count = 0;
    }
    ++queue.count;
    Open call{event.at_ns, event.tid, event.actions, {}};
    call.of_empty = of_empty;
    call.full_since = queue.held ? queue.launched_ns : event.at_ns;
    queue.held = false;
    queue.last = ++process.launches;
    queue.launched_ns = process.launched_ns = event.at_ns;
    totals_.most_queued = std::max(totals_.most_queued, queue.count - queue.done_count);
    if ((event.actions & SB_PROGRESS_WAITS) == 0) return; // its end is not told
    call.mark = Mark{event.queue, queue.last, event.at_ns, queue.count};
    process.open[event.place] = call;
}

void DeviceQueues::begin_wait(Process& process, const sb_device_event& event) {
    Open call{event.at_ns, event.tid, event.actions, {}};
    if ((event.actions & SB_DEVICE_HAS_EVENT) != 0) {
        const auto known = process.events.find(event.event);
        if (known != process.events.end()) call.mark = known->second;
    } else if ((event.actions & SB_DEVICE_HAS_QUEUE) != 0) {
        const auto known = process.queues.find(event.queue);
        if (known != process.queues.end())
            call.mark = Mark{event.queue, known->second.last, known->second.launched_ns,
                             known->second.count};
    } else {
        call.of_all = true;
        call.mark = Mark{0, process.launches, process.launched_ns, 0};
    }
    process.open[event.place] = call;
    if (process.waiting++ == 0) process.waiting_since = event.at_ns;
}

void DeviceQueues::end(Process& process, const sb_device_event& event) {
    const auto found = process.open.find(event.place);
    if (found == process.open.end() || found->second.begin_ns != event.begin_ns) return;
    const Open call = found->second;
    process.open.erase(found);
    if ((call.actions & SB_PROGRESS_LAUNCHES) != 0)
        end_launch(process, call, event.at_ns);
    else
        end_wait(process, call, event.at_ns);
}

uint64_t DeviceQueues::usual_launch() const {
    if (free_launches_.empty()) return 0;
    std::vector<uint64_t> sorted(free_launches_.begin(), free_launches_.end());
    const auto middle = sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    return *middle;
}

void DeviceQueues::end_launch(Process& process, const Open& call, uint64_t now) {
    const uint64_t took = between(call.begin_ns, now);
    totals_.launching += time_of(took);
    if (call.of_empty) {
        free_launches_.push_back(took);
        if (free_launches_.size() > kUsualLaunches) free_launches_.pop_front();
    }
    const auto found = process.queues.find(call.mark->queue);
    if (found == process.queues.end()) return;
    Queue& queue = found->second;
    // It lies in the queue from its return on, at the latest.
    if (queue.last == call.mark->last) queue.launched_ns = now;
    if (process.launches == call.mark->last) process.launched_ns = now;
    const uint64_t usual = usual_launch();
    if (usual == 0) {
        totals_.unsure += time_of(took);
        return;
    }
    const bool held = took > kHeldFactor * usual + kHeldMore && !call.of_empty;
    if (held) {
        totals_.held += time_of(took - usual);
        prove_busy(process, call.full_since, now);
    }
    if (queue.last == call.mark->last) queue.held = held;
}

void DeviceQueues::end_wait(Process& process, const Open& call, uint64_t now) {
    ++totals_.waits;
    drop_call(process, now);
    if (process.watched_since == 0) {
        process.watched_since = now;
        process.covered = now;
    }
    if (!call.mark) return;
    // Launched before the wait began, and still not done then: something was queued all the time.
    const bool blocked = between(call.begin_ns, now) >= kBlocked;
    if (call.of_all) {
        if (blocked) prove_busy(process, call.mark->launched_ns, now);
        if (process.launches != call.mark->last) return; // of these some may be queued
        process.all_done = process.launches;
        process.busy = 0;
    } else {
        Queue& queue = process.queues[call.mark->queue];
        const bool was_busy = is_busy(process, queue);
        if (call.mark->last > std::max(queue.done, process.all_done)) {
            if (blocked) prove_busy(process, call.mark->launched_ns, now);
            queue.done_count = std::max(queue.done_count, call.mark->count);
        }
        queue.done = std::max(queue.done, call.mark->last);
        if (was_busy && !is_busy(process, queue)) --process.busy;
    }
    if (process.busy == 0 && process.idle_since == 0) process.idle_since = now;
}

// What was decided before stays so.
void DeviceQueues::prove_busy(Process& process, uint64_t from, uint64_t to) {
    if (process.watched_since == 0 || process.idle_since != 0) return;
    totals_.busy += time_of(between(std::max(from, process.covered), to));
    process.covered = std::max(process.covered, to);
}

void DeviceQueues::close(const Process& process, uint64_t now, DeviceReading& totals) {
    if (process.watched_since != 0) totals.watched += time_of(between(process.watched_since, now));
    if (process.idle_since != 0) totals.idle += time_of(between(process.idle_since, now));
    if (process.waiting != 0) totals.wait += time_of(between(process.waiting_since, now));
}

void DeviceQueues::forget_all(uint64_t now_ns) {
    for (const auto& [pid, process] : processes_) close(process, now_ns, totals_);
    processes_.clear();
    ++totals_.gaps;
}

void DeviceQueues::keep_only(const std::set<uint32_t>& alive, uint64_t now_ns) {
    std::erase_if(processes_, [&](const auto& one) {
        if (alive.contains(one.first)) return false;
        close(one.second, now_ns, totals_);
        return true;
    });
}

DeviceReading DeviceQueues::totals(uint64_t now_ns) const {
    DeviceReading sum = totals_;
    for (const auto& [pid, process] : processes_) close(process, now_ns, sum);
    return sum;
}

} // namespace speedbump::experiment
