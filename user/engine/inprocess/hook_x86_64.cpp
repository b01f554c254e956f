// SPDX-License-Identifier: MIT
#include "engine/inprocess/hook.h"

#include "sb_common.h"

// Compiled without instrumentation, vector registers and built-in calls; see CMakeLists.txt. It
// runs in signal handlers, children of vfork() and threads of any kind: no locks, no library, no
// thread-local storage, no system calls.
#define HOOK __attribute__((section("speedbump_hook"), used, noinline, visibility("hidden")))
#define HOOK_INLINE static inline __attribute__((always_inline))

using speedbump::engine::inprocess::HookCounts;
using speedbump::engine::inprocess::HookSettings;
using speedbump::engine::inprocess::HookSite;
using speedbump::engine::inprocess::HookTarget;
using speedbump::engine::inprocess::kOwnerDied;
using speedbump::engine::inprocess::kStripes;
using speedbump::engine::inprocess::kTickShift;
using speedbump::engine::inprocess::ProcessWord;

namespace {

constexpr uint64_t kPauseTicks = 1000; // that an instruction `pause` may take, and more

template <typename T>
HOOK_INLINE T load(const T& word) {
    return __atomic_load_n(&word, __ATOMIC_RELAXED);
}

HOOK_INLINE void add(uint64_t& word, uint64_t value) {
    __atomic_fetch_add(&word, value, __ATOMIC_RELAXED);
}

HOOK_INLINE bool is_live(const HookSettings& settings) {
    return load(settings.armed) != 0 && (load(settings.owner) & kOwnerDied) == 0;
}

HOOK_INLINE uint64_t clock() {
    return __builtin_ia32_rdtsc();
}

// Threads have stacks apart from each other.
HOOK_INLINE uint64_t own_stripe() {
    const auto stack = reinterpret_cast<uint64_t>(__builtin_frame_address(0));
    return (stack >> 14 ^ stack >> 20 ^ stack >> 23) % kStripes;
}

} // namespace

extern "C" {

HOOK void speedbump_hook_call(const HookSite* site) {
    const auto& settings = *reinterpret_cast<const HookSettings*>(site->settings);
    const auto& target = *reinterpret_cast<const HookTarget*>(site->target);
    if (!is_live(settings) || load(target.enabled) == 0) return;
    const uint64_t is_known = load(*reinterpret_cast<const ProcessWord*>(site->process)) & 1;
    if (!is_known && load(settings.follow) == 0) return;
    HookCounts& counts =
        reinterpret_cast<HookCounts*>(site->counts)[is_known * kStripes + own_stripe()];
    add(counts.hits, 1);
    uint64_t delay_ns = load(target.delay_ns);
    if (delay_ns == 0) return;
    const uint64_t begin = clock();
    if (begin < load(target.start_ticks)) return;
    const uint64_t end = load(target.end_ticks);
    if (end != 0 && begin >= end) return;
    if (delay_ns > SB_MAX_DELAY_NS) delay_ns = SB_MAX_DELAY_NS;
    add(counts.delays, 1);
    add(counts.requested_ns, delay_ns);
    const uint64_t ticks = delay_ns * load(settings.ticks_per_ns) >> kTickShift;
    const uint64_t outside = load(settings.outside_ticks);
    const uint64_t deadline = begin + (ticks > outside ? ticks - outside : 0);
    uint64_t now = begin;
    while (now < deadline && is_live(settings)) {
        if (deadline - now > kPauseTicks) __builtin_ia32_pause();
        now = clock();
    }
    add(counts.measured_ticks, now - begin + outside);
}

extern const unsigned char __start_speedbump_hook[] __attribute__((visibility("hidden")));
extern const unsigned char __stop_speedbump_hook[] __attribute__((visibility("hidden")));

} // extern "C"

namespace speedbump::engine::inprocess {

HookCode hook_code() {
    const auto* const entry = reinterpret_cast<const unsigned char*>(&speedbump_hook_call);
    return {__start_speedbump_hook,
            static_cast<size_t>(__stop_speedbump_hook - __start_speedbump_hook),
            static_cast<size_t>(entry - __start_speedbump_hook)};
}

} // namespace speedbump::engine::inprocess
