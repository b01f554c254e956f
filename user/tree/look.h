// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "tree/descent.h"
#include "tree/process_tree.h"
#include "util/result.h"

namespace speedbump::tree {

// What a look at the process tree is to go by, each asked of the processes as they are listed.
struct TreeQuestion {
    // The processes that belong whoever their parent is, with their root bits.
    std::function<Result<std::map<uint32_t, uint64_t>>(const std::vector<ListedProcess>& listed)>
        roots;
    // Whether one that descends from these may belong.
    std::function<bool(const ListedProcess& process)> may_belong;
    bool follow_children = true;
};

// What it brought.
struct TreeLook {
    struct Member {
        ListedProcess process;
        uint64_t roots = 0;
    };
    // The living members at its end; nullopt: they could not be listed.
    std::optional<std::vector<Member>> members;
    std::vector<TreeEvent> events; // told until then, still to be handled
    uint64_t lost_events = 0;      // however often it looked: somebody may be missing
    std::optional<Error> failure;  // why it is not complete
};

// Makes members of all processes below the roots, although they fork meanwhile: forks are recorded
// from before the list is read until every process of the list is a member, after which the kernel
// side adds their children by itself. Where the record has gaps the list is read again.
TreeLook look_at_tree(ProcessTree& tree, const TreeQuestion& question);

} // namespace speedbump::tree
