// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/features.h"
#include "engine/links.h"
#include "process/tree.h"
#include "util/result.h"

namespace speedbump::engine {

// What the BPF programs tell of the tree (bpf/abi.h: sb_event), PIDs as this program sees them.
struct TreeEvent {
    enum class Type { kFork = 1, kExec, kExit, kEdge, kJoin, kLeave } type;
    uint32_t tgid = 0;
    uint32_t parent_tgid = 0; // kExec: the thread that did it, 0: the leader
    pid_t pid = 0;
    uint64_t roots = 0;
    uint64_t start_time = 0;
    std::string command;
};

// A probe the kernel refused, with its errno.
struct RefusedProbe {
    Probe probe;
    int error_number = 0;
};

// The delay engine in BPF: the programs of bpf/delay.bpf.c, their maps, and the probes that lead
// to them. Loaded disarmed. Not thread-safe.
class BpfEngine {
  public:
    // Loads the programs and attaches those that follow the process tree.
    static Result<std::unique_ptr<BpfEngine>> load(const Features& features);
    ~BpfEngine();

    // Measures on this host, with the program and the maps of this engine, what a hit costs, and
    // makes the programs take it off their delays. Only before the first probe. Some 50 ms.
    Result<Floors> calibrate();
    // The accuracy of the calibrated engine at these delays, on functions of its own.
    Result<std::vector<CalibrationRow>> measure_accuracy(const std::vector<nanoseconds>& delays);

    // --- the process tree
    void follow_children(bool follow);
    // Every process below this cgroup (v2) belongs, with these root bits.
    void set_cgroup(uint64_t id, uint64_t roots);
    // From now on every fork of the system is told as kEdge, until it is switched off.
    void record_edges(bool record);
    void wake_on_fork(bool wake);
    Result<std::vector<process::ListedProcess>> list_processes();
    // This program's own PID in the initial namespace.
    uint32_t own_tgid() const;
    // Adds a process, or bits to one that is there: false when it had them already.
    Result<bool> add_member(uint32_t tgid, uint64_t roots);
    void remove_member(uint32_t tgid);
    // The member's root bits, 0 when it is none.
    uint64_t member_roots(uint32_t tgid) const;
    uint64_t member_count() const;
    // The map of the members (abi.h: sb_member by tgid); the engine's own.
    int tree_map() const;
    // Readable when drain_events() has something urgent.
    int event_fd() const;
    std::vector<TreeEvent> drain_events();

    // --- targets
    // Windows are relative to `window_origin_ns` (CLOCK_MONOTONIC), 0: not armed yet, none.
    Result<void> configure(uint32_t target, const TargetSettings& settings,
                           uint64_t window_origin_ns, bool wide);
    void arm(bool armed);
    bool armed() const;

    // --- probes; path is one that names the very file, such as /proc/self/fd/N
    // Narrow: only that process takes the breakpoints. Those that the kernel refuses one by one are
    // left out and listed; an error is one that concerns all of them.
    Result<Links> attach_narrow(const std::string& path, const std::vector<Probe>& probes,
                                pid_t pid, std::vector<RefusedProbe>& refused);
    // The same for several processes, at once where the kernel can aim probes: no links for those
    // where that can't be, or was refused.
    std::vector<Links> attach_narrow(const std::string& path, const std::vector<Probe>& probes,
                                     const std::vector<pid_t>& pids);
    // Wide: every process that maps the file takes them; members alone are delayed.
    Result<Links> attach_wide(const std::string& path, const std::vector<Probe>& probes,
                              std::vector<RefusedProbe>& refused);

    // --- counters. `process` of each is a tgid, 0 for those that could not be told apart. All of
    // them, or an error.
    Result<std::vector<Counts>> read_counts() const;
    void forget_counts(uint32_t target, uint32_t tgid);
    uint64_t lost_events() const;
    uint64_t lost_members() const;

  private:
    struct Impl;
    class OwnProbe;
    explicit BpfEngine(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

} // namespace speedbump::engine
