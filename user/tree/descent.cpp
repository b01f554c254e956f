// SPDX-License-Identifier: MIT
#include "tree/descent.h"

#include <set>

namespace speedbump::tree {

std::map<uint32_t, uint64_t> descendants(const std::vector<ListedProcess>& processes,
                                         const std::vector<ForkEdge>& edges,
                                         const std::map<uint32_t, uint64_t>& roots,
                                         bool follow_children, uint32_t excluded) {
    std::multimap<uint32_t, uint32_t> children;
    std::set<uint32_t> known;
    std::set<uint32_t> kernel_threads;
    for (const ListedProcess& process : processes) {
        if (process.kernel_thread) {
            kernel_threads.insert(process.tgid);
            continue;
        }
        known.insert(process.tgid);
        children.emplace(process.parent_tgid, process.tgid);
    }
    for (const ForkEdge& edge : edges) {
        known.insert(edge.child_tgid);
        children.emplace(edge.parent_tgid, edge.child_tgid);
    }

    std::map<uint32_t, uint64_t> members;
    for (const auto& [root, bits] : roots) {
        if (!known.contains(root) || root == excluded) continue;
        std::vector<uint32_t> pending{root};
        while (!pending.empty()) {
            const uint32_t tgid = pending.back();
            pending.pop_back();
            uint64_t& member_bits = members[tgid];
            if ((member_bits & bits) == bits) continue; // also ends circles
            member_bits |= bits;
            if (!follow_children) continue;
            const auto [first, last] = children.equal_range(tgid);
            for (auto child = first; child != last; ++child) {
                if (child->second != excluded && !kernel_threads.contains(child->second))
                    pending.push_back(child->second);
            }
        }
    }
    return members;
}

} // namespace speedbump::tree
