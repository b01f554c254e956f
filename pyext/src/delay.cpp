// SPDX-License-Identifier: MIT
#include "clock.h"
#include "session.h"

namespace speedbump::python {

Live g_live;

namespace {

sb_slot* claim_slot() {
    return g_live.table->claim(SB_WRITER(g_live.place.pid_namespace, g_live.pid));
}

#if SB_FREE_THREADED
// A thread's slot; given up when the thread ends so that the next one goes on with it.
struct ThreadSlot {
    sb_slot* slot = nullptr;
    uint32_t writers = 0; // of g_live, when it was claimed
    ~ThreadSlot() {
        // The table is there only while the session runs that the slot belongs to.
        const InHook in(slot != nullptr);
        if (slot != nullptr && g_live.running.load() != 0 && g_live.writers.load() == writers) {
            __atomic_store_n(&slot->busy, 0u, __ATOMIC_RELEASE);
        }
    }
};
thread_local ThreadSlot t_slot;

sb_slot* writer_slot(Interpreter&) {
    ThreadSlot& mine = t_slot;
    const uint32_t writers = g_live.writers.load(std::memory_order_relaxed);
    if (mine.slot == nullptr || mine.writers != writers) [[unlikely]] {
        mine.writers = writers;
        mine.slot = claim_slot();
    }
    return mine.slot;
}
#else
sb_slot* writer_slot(Interpreter& interpreter) {
    sb_slot* slot = interpreter.slot; // once: it may be taken back meanwhile
    if (slot == nullptr) [[unlikely]] {
        slot = claim_slot();
        interpreter.slot = slot;
    }
    return slot;
}
#endif

// A counter has one writer, except in slot 0. Readers run at any time.
void add(__u64& counter, uint64_t amount, bool shared) {
    if (shared) {
        __atomic_fetch_add(&counter, amount, __ATOMIC_RELAXED);
    } else {
        __atomic_store_n(&counter, __atomic_load_n(&counter, __ATOMIC_RELAXED) + amount,
                         __ATOMIC_RELAXED);
    }
}

uint64_t load(const __u64& field) {
    return __atomic_load_n(&field, __ATOMIC_RELAXED);
}

bool may_go_on(const sb_target& target) {
#if SB_FREE_THREADED
    // A spinning thread would hold up the end of the interpreter; with a GIL the end can't begin.
    if (is_finalizing()) return false;
#endif
    return __atomic_load_n(&target.enabled, __ATOMIC_RELAXED) != 0 &&
           g_live.running.load(std::memory_order_relaxed) != 0 &&
           is_armed(*g_live.settings, g_live.armed_as.load(std::memory_order_relaxed));
}

// A hit of a target whose delay is its column's, at a time of the table's clock: counted in the
// slice that it lies in, null when there is none. `delay` becomes the slice's.
sb_slice_counts* scheduled_hit(sb_slot* slot, bool shared, uint64_t here, uint64_t& delay) {
    const auto column = static_cast<uint32_t>(delay);
    delay = 0;
    const sb_schedule* const schedule = g_live.schedule;
    if (schedule == nullptr || column >= g_live.columns) return nullptr;
    __u64 since_ns = 0;
    const uint64_t slice = sb_slice_at(schedule, here, &since_ns);
    if (slice == SB_NO_SLICE) return nullptr;
    const uint32_t cell = sb_cell(slice, column, g_live.columns);
    const uint64_t dose = load(reinterpret_cast<const __u64*>(schedule + 1)[cell]);
    if (dose != 0) delay = sb_within_schedule(schedule, here, dose);
    sb_slice_counts* const counts =
        reinterpret_cast<sb_slice_counts*>(reinterpret_cast<char*>(slot) + g_live.slices_offset) +
        cell;
    add(counts->hits, 1, shared);
    add(counts->since_ns, since_ns, shared);
    return counts;
}

// Spins until the delay is over, or has to end: what the call was delayed by. A change of the
// target's delay is one of the delay in flight, too.
uint64_t spin(const sb_target& target, uint64_t begin, uint64_t& delay) {
    const uint64_t overhead = g_live.overhead_ns;
    uint64_t now = begin;
    while (now - begin + overhead < delay && may_go_on(target)) {
        now = now_ns();
        const uint64_t set = load(target.delay_ns);
        delay = (set & SB_SCHEDULED) != 0 ? 0 : set;
    }
    return now - begin + overhead;
}

// The same for a delay of the schedule, or none, which come on top of what a hit without one takes.
uint64_t spin_scheduled(const sb_target& target, uint64_t begin, uint64_t delay) {
    uint64_t now = now_ns();
    while (now - begin < delay && may_go_on(target)) now = now_ns();
    return now - begin;
}

} // namespace

bool on_match(Interpreter& interpreter, Decision decision) noexcept {
    const sb_settings& settings = *g_live.settings;
    const uint32_t index = place_of(decision) - 1;
    if (!is_armed(settings, g_live.armed_as.load(std::memory_order_acquire)) ||
        g_live.running.load(std::memory_order_relaxed) == 0) [[unlikely]] {
        return !is_over(settings);
    }
    // Beside us functions may just be grouped anew: first the decisions are outdated, then counts.
    if (interpreter.runs_beside && !is_current(decision)) return true;
    sb_slot* slot = writer_slot(interpreter);
    const bool shared = slot == g_live.shared_slot;
    sb_counts& counts = Table::counts_of(slot)[index];
    add(counts.hits, 1, shared);
    if (shared) [[unlikely]] {
        __atomic_fetch_add(&g_live.counters->lost_counts, 1u, __ATOMIC_RELAXED);
    }

    const sb_target& target = g_live.targets[index];
    uint64_t delay = load(target.delay_ns);
    if (delay == 0 || __atomic_load_n(&target.enabled, __ATOMIC_RELAXED) == 0 ||
        (load(target.root_mask) & g_live.roots) == 0) {
        return true;
    }
    const uint64_t every = load(target.every);
    if (every > 1) {
        const uint64_t turn = __atomic_add_fetch(&g_live.turns[index].calls, 1, __ATOMIC_RELAXED);
        if (turn % every != 0) return true;
    }
    const uint64_t begin = now_ns();
    const uint64_t window_start = load(target.start_ns);
    const uint64_t window_end = load(target.end_ns);
    const uint64_t here = begin - static_cast<uint64_t>(g_live.place.clock_offset_ns);
    if (here < window_start || (window_end != 0 && here >= window_end)) return true;

    sb_slice_counts* of_slice = nullptr;
    if ((delay & SB_SCHEDULED) != 0) {
        of_slice = scheduled_hit(slot, shared, here, delay);
        if (of_slice == nullptr) return true;
    }
    // Without a branch: it is to take as long without a delay, which only a schedule comes here
    // with. Asked before the spin, in which a delay may be set to 0.
    const uint64_t is_delayed = delay != 0 ? 1 : 0;
    const uint64_t measured =
        of_slice != nullptr ? spin_scheduled(target, begin, delay) : spin(target, begin, delay);
    add(counts.delays, is_delayed, shared);
    add(counts.requested_ns, delay, shared);
    add(counts.measured_ns, measured * is_delayed, shared);
    if (of_slice != nullptr) {
        add(of_slice->delays, is_delayed, shared);
        add(of_slice->measured_ns, measured * is_delayed, shared);
        add(of_slice->undelayed_ns, measured * (1 - is_delayed), shared);
    }
    return true;
}

} // namespace speedbump::python
