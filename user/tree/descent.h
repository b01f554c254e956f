// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace speedbump::tree {

// A process as the kernel lists it. `tgid` is its PID in the initial namespace, `pid` the one that
// this program sees (they differ inside a container).
struct ListedProcess {
    uint32_t tgid = 0;
    uint32_t parent_tgid = 0;
    pid_t pid = 0;
    uint64_t start_time = 0; // ns since boot
    bool kernel_thread = false;
    bool in_cgroup = false;
    std::string command;
    bool ended = false; // a zombie, or about to be one
};

// A fork seen while the list was made: the parent at that moment, whoever adopted the child later.
struct ForkEdge {
    uint32_t parent_tgid = 0;
    uint32_t child_tgid = 0;
};

// The processes that descend from `roots` (tgid -> bits; each root included when it is listed or a
// fork made it), each with the bits of every root above it. A parent is both the listed one and
// the one of an edge, so that an orphan adopted half-way is not lost. Kernel threads never belong.
// `follow_children` false gives the roots alone; `excluded` (this program) and what only descends
// from it does not belong.
std::map<uint32_t, uint64_t> descendants(const std::vector<ListedProcess>& processes,
                                         const std::vector<ForkEdge>& edges,
                                         const std::map<uint32_t, uint64_t>& roots,
                                         bool follow_children, uint32_t excluded);

} // namespace speedbump::tree
