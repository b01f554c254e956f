// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tree/descent.h"
#include "util/result.h"

namespace speedbump::tree {

// What the kernel side says of the tree (bpf/abi.h: sb_event), PIDs as this program sees them.
struct TreeEvent {
    enum class Type { kFork = 1, kExec, kExit, kEdge, kJoin, kLeave, kRise } type;
    uint32_t tgid = 0;
    uint32_t parent_tgid = 0; // kExec: the thread that did it, 0: the leader
    pid_t pid = 0;
    uint64_t roots = 0;
    uint64_t start_time = 0;
    std::string command;
};

// The process tree of a session as the kernel follows it: the members, and what becomes of them.
class ProcessTree {
  public:
    ProcessTree() = default;
    ProcessTree(const ProcessTree&) = delete;
    ProcessTree& operator=(const ProcessTree&) = delete;
    virtual ~ProcessTree() = default;

    virtual void follow_children(bool follow) = 0;
    // Every process below this cgroup (v2) belongs, with these root bits.
    virtual void set_cgroup(uint64_t id, uint64_t roots) = 0;
    // From now on every fork of the system is reported as kEdge, until it is switched off.
    virtual void record_edges(bool record) = 0;
    virtual void wake_on_fork(bool wake) = 0;
    virtual Result<std::vector<ListedProcess>> list_processes() = 0;
    // This program's own PID in the initial namespace.
    virtual uint32_t own_tgid() const = 0;
    // Adds a process, or bits to one that is there: false when it had them already.
    virtual Result<bool> add_member(uint32_t tgid, uint64_t roots) = 0;
    virtual void remove_member(uint32_t tgid) = 0;
    // The member's root bits, 0 when it is none.
    virtual uint64_t member_roots(uint32_t tgid) const = 0;
    virtual uint64_t member_count() const = 0;
    // The map of the members (abi.h: sb_member by tgid); the tree's own.
    virtual int tree_map() const = 0;
    // The map of the schedule that progress points are counted by (bpf/schedule.bpf.h); -1: none.
    virtual int schedule_map() const { return -1; }
    // Readable when drain_events() has something urgent.
    virtual int event_fd() const = 0;
    virtual std::vector<TreeEvent> drain_events() = 0;
    virtual uint64_t lost_events() const = 0;
    virtual uint64_t lost_members() const = 0;
};

// An executable mapping that some process of the system has just made.
struct NewMapping {
    pid_t pid = 0;
    uint64_t inode = 0;
    std::string path; // as the kernel prints it
};

// Every new executable mapping on the system, as it is made.
class MappingRecords {
  public:
    MappingRecords() = default;
    MappingRecords(const MappingRecords&) = delete;
    MappingRecords& operator=(const MappingRecords&) = delete;
    virtual ~MappingRecords() = default;

    virtual int fd() const = 0; // readable when drain() has something, unless moderated()
    virtual bool moderated() const = 0;
    // `lost` is set when records may be missing: look at all processes again.
    virtual std::vector<NewMapping> drain(bool& lost) = 0;
};

} // namespace speedbump::tree
