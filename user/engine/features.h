// SPDX-License-Identifier: MIT
#pragma once

#include <future>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "util/result.h"

namespace speedbump::engine {

// What this kernel can do, probed once and passed by const reference. Each can be overridden to
// "absent" for tests with SPEEDBUMP_WITHOUT=uprobe_multi,sleepable,... (read in probe_features
// only).
struct Features {
    bool btf = false; // /sys/kernel/btf/vmlinux
    bool bpf = false; // a uprobe program loads
    bool sleepable_uprobe = false;
    bool uprobe_multi = false;     // 6.6
    bool uprobe_multi_pid = false; // its pid filter works per process, not per thread (6.10)
    bool tracepoint_btf = false;   // tp_btf programs load
    bool task_iterator = false;
    bool mmap_events = false;      // perf mmap records, system-wide
    bool nop5_optimized = false;   // 5-byte nop becomes a call (6.18)
    bool nop5_is_safe = false;     // it does not, or forked children can make that call
    bool no_shadow_stacks = false; // processes can't have them
    bool few_tallies = false;      // for tests: counters of a handful of processes only
    bool small_ring = false;       // for tests: room for few events of the process tree
    bool few_members = false;      // for tests: room for few processes in the tree
    bool no_fentry = false;        // for tests: no programs at functions of the kernel
    bool kmod = false;             // /dev/speed_bump
    // The probes of the tries being taken out again; the last copy waits for it.
    std::shared_future<void> cleanup;
};

// One line of `speedbump doctor`.
struct Check {
    std::string name;
    enum class State { kGood, kDegraded, kBad, kUnknown } state = State::kUnknown;
    std::string detail; // what was found, and why it matters
    std::string remedy; // the line to paste, empty when good
};

Features probe_features();
// What may be probed on this kernel.
elf::SiteOptions site_options(const Features& features);
// The kPermission error that names exactly the capability that is missing for attaching to others'
// processes (CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE), or kUnsupported with the missing feature.
Result<void> require_attach_rights(const Features& features);
// The same of this host, at less cost, and without a thread (where the in-process engine is still
// to be opened, which must be alone).
Result<void> require_attach_rights();
// Everything doctor prints about the host.
std::vector<Check> check_host(const Features& features);

// One row of `speedbump calibrate`.
struct CalibrationRow {
    std::string engine; // "bpf", "inprocess", "kmod"
    elf::SiteKind kind;
    nanoseconds floor{0};        // a hit with delay 0, median
    nanoseconds floor_spread{0}; // half the interquartile range
    struct Point {
        nanoseconds requested{0};
        nanoseconds measured{0}; // median added time per call
        nanoseconds spread{0};
    };
    std::vector<Point> accuracy; // at 1 us, 10 us, 100 us, 1 ms
};
// Loads the engine, calibrates it and measures its accuracy; some seconds.
Result<std::vector<CalibrationRow>> calibrate(const Features& features);

} // namespace speedbump::engine
