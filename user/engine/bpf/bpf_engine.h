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
#include "tree/descent.h"
#include "tree/process_tree.h"
#include "util/result.h"

namespace speedbump::engine {

// The delay engine in BPF, which follows the process tree for the others as well: the programs of
// bpf/delay.bpf.c, their maps, and the probes that lead to them. Loaded disarmed. Not thread-safe.
class BpfEngine final : public tree::ProcessTree, public ProbeEngine {
  public:
    // Loads the programs and attaches those that follow the process tree.
    // Its schedule has so many columns; 0: there is none.
    static Result<std::unique_ptr<BpfEngine>> load(const Features& features, uint32_t columns = 0);
    ~BpfEngine() override;

    Capabilities capabilities() const override;
    // With the program and the maps of this engine. Some 50 ms.
    Result<Floors> calibrate() override;
    nanoseconds floor(elf::SiteKind kind) const override;
    // The accuracy of the calibrated engine at these delays, on functions of its own.
    Result<std::vector<CalibrationRow>> measure_accuracy(const std::vector<nanoseconds>& delays);

    // --- the process tree
    void follow_children(bool follow) override;
    void set_cgroup(uint64_t id, uint64_t roots) override;
    void record_edges(bool record) override;
    void wake_on_fork(bool wake) override;
    Result<std::vector<tree::ListedProcess>> list_processes() override;
    uint32_t own_tgid() const override;
    Result<bool> add_member(uint32_t tgid, uint64_t roots) override;
    void remove_member(uint32_t tgid) override;
    uint64_t member_roots(uint32_t tgid) const override;
    uint64_t member_count() const override;
    int tree_map() const override;
    int event_fd() const override;
    std::vector<tree::TreeEvent> drain_events() override;
    uint64_t lost_events() const override;
    uint64_t lost_members() const override;

    // --- targets
    Result<void> configure(uint32_t target, const TargetSettings& settings, uint64_t armed_at_ns,
                           const ProbeSets& sets) override;
    void arm(bool armed) override;
    uint32_t* armed_word() override;
    Schedule* schedule() override;
    int schedule_map() const override;

    // --- probes
    Result<Attached> attach(const FileProbes& probes, std::optional<pid_t> only,
                            std::vector<RefusedProbe>& refused) override;
    std::vector<Attached> attach_each(const FileProbes& probes,
                                      const std::vector<pid_t>& pids) override;
    void release(std::vector<Attached> attachments) override;

    // The same, held as links; path is one that names the very file, such as /proc/self/fd/N.
    // Narrow: only that process takes the breakpoints. Those that the kernel refuses one by one are
    // left out and listed; an error is one that concerns all of them.
    Result<Links> attach_narrow(const std::string& path, const std::vector<Probe>& probes,
                                pid_t pid, std::vector<RefusedProbe>& refused, uint32_t set = 0);
    // The same for several processes, at once where the kernel can aim probes: no links for those
    // where that can't be, or was refused.
    std::vector<Links> attach_narrow(const std::string& path, const std::vector<Probe>& probes,
                                     const std::vector<pid_t>& pids, uint32_t set = 0);
    // Wide: every process that maps the file takes them; members alone are delayed.
    Result<Links> attach_wide(const std::string& path, const std::vector<Probe>& probes,
                              std::vector<RefusedProbe>& refused, uint32_t set = 0);

    // --- counters
    Result<std::vector<Counts>> read_counts() override;
    void forget_counts(uint32_t target, uint32_t tgid) override;

  private:
    struct Impl;
    class OwnProbe;
    explicit BpfEngine(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

} // namespace speedbump::engine
