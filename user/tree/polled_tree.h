// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tree/process_tree.h"
#include "util/clock.h"

namespace speedbump::tree {

// What /proc/PID/stat says of a process (proc_pid_stat(5)).
struct ProcessStat {
    std::string command;
    pid_t parent = 0;
    bool kernel_thread = false;
    bool ended = false;
    uint64_t start_time = 0; // ns since boot, in steps of a clock tick
    uint64_t size = 0;       // of its memory
    // What a new program changes; 0 to who may not look into the process.
    uint64_t start_code = 0;
    uint64_t start_stack = 0;
};
// nullopt: it is no such text.
std::optional<ProcessStat> parse_process_stat(std::string_view text);

// Every process that /proc shows. Those that end meanwhile are left out.
std::vector<ListedProcess> list_proc();

// The process tree as /proc shows it, for who may not load BPF programs: it is looked at whenever
// drain_events() is called, but for pauses that keep it from taking more than a few percent of a
// CPU. A process that ends before the next look is missed; so is one whose parent has ended by
// then, with all that descend from it.
class PolledTree final : public ProcessTree {
  public:
    // `may_belong`: whether a child may be a member, asked when it is found.
    explicit PolledTree(std::function<bool(pid_t)> may_belong);

    void follow_children(bool follow) override { follow_children_ = follow; }
    void set_cgroup(uint64_t, uint64_t) override {} // refused before: inprocess engine
    void record_edges(bool record) override { looks_always_ = record; }
    void wake_on_fork(bool) override {}
    Result<std::vector<ListedProcess>> list_processes() override;
    uint32_t own_tgid() const override;
    Result<bool> add_member(uint32_t tgid, uint64_t roots) override;
    void remove_member(uint32_t tgid) override { members_.erase(tgid); }
    uint64_t member_roots(uint32_t tgid) const override;
    uint64_t member_count() const override { return members_.size(); }
    int tree_map() const override { return -1; } // no programs are there to read it
    int event_fd() const override { return -1; }
    std::vector<TreeEvent> drain_events() override;
    uint64_t lost_events() const override { return 0; }
    uint64_t lost_members() const override { return 0; }

    // The mappings of members; to be asked by the clock. The tree must outlive it.
    std::unique_ptr<MappingRecords> mappings();

  private:
    class Mappings;
    struct Member {
        uint64_t roots = 0;
        ProcessStat stat;
    };
    void look_at_members(std::vector<TreeEvent>& events);
    void look_for_children(std::vector<TreeEvent>& events);
    bool adopt(const ListedProcess& process, std::vector<TreeEvent>& events);

    const std::function<bool(pid_t)> may_belong_;
    bool follow_children_ = true;
    bool looks_always_ = false;
    std::map<uint32_t, Member> members_;
    std::vector<NewMapping> mapped_; // since they were last asked for
    Clock::time_point due_{};
    std::string last_pid_; // of all, when children were last looked for
    bool looks_again_ = false;
};

} // namespace speedbump::tree
