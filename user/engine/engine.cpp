// SPDX-License-Identifier: MIT
#include "engine/engine.h"

#include <unistd.h>

#include "engine/features.h"
#include "process/namespaces.h"

namespace speedbump::engine {

uint64_t on_host_clock(uint64_t here_ns) {
    static const int64_t offset_ns = process::monotonic_offset_of(getpid());
    return here_ns == 0 ? 0 : here_ns - static_cast<uint64_t>(offset_ns);
}

elf::SiteOptions site_options(const Features& features) {
    return {features.nop5_optimized, features.nop5_is_safe, features.no_shadow_stacks};
}

void write_target(sb_target& entry, const TargetSettings& settings, uint64_t window_origin_ns,
                  const ProbeSets& sets) {
    const auto store = [](__u64& to, uint64_t value) {
        __atomic_store_n(&to, value, __ATOMIC_RELAXED);
    };
    const auto start = static_cast<uint64_t>(settings.start.count());
    const auto duration = static_cast<uint64_t>(settings.duration.count());
    store(entry.delay_ns, settings.column ? SB_SCHEDULED | *settings.column
                                          : static_cast<uint64_t>(settings.delay.count()));
    store(entry.every, settings.every);
    store(entry.root_mask, settings.root_mask);
    store(entry.start_ns, window_origin_ns && start ? window_origin_ns + start : 0);
    store(entry.end_ns, window_origin_ns && duration ? window_origin_ns + start + duration : 0);
    __atomic_store_n(&entry.sets, sets.word(), __ATOMIC_RELAXED);
    __atomic_store_n(&entry.enabled, settings.enabled ? 1u : 0u, __ATOMIC_RELEASE);
}

} // namespace speedbump::engine
