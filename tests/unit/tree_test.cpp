// SPDX-License-Identifier: MIT
#include "tree/descent.h"

#include <gtest/gtest.h>

namespace speedbump::tree {
namespace {

using Members = std::map<uint32_t, uint64_t>;

ListedProcess listed(uint32_t tgid, uint32_t parent) {
    ListedProcess process;
    process.tgid = tgid;
    process.parent_tgid = parent;
    process.pid = static_cast<pid_t>(tgid);
    return process;
}

TEST(ProcessTree, TakesAllDescendantsAndNobodyElse) {
    const std::vector<ListedProcess> processes{listed(1, 0),   listed(10, 1), listed(11, 10),
                                               listed(12, 11), listed(20, 1), listed(21, 20)};
    EXPECT_EQ(descendants(processes, {}, {{10, 1}}, true, 0), (Members{{10, 1}, {11, 1}, {12, 1}}));
}

TEST(ProcessTree, TakesTheRootAloneWithoutChildren) {
    const std::vector<ListedProcess> processes{listed(10, 1), listed(11, 10)};
    EXPECT_EQ(descendants(processes, {}, {{10, 1}}, false, 0), (Members{{10, 1}}));
}

TEST(ProcessTree, KeepsAnOrphanWhoseForkWasSeen) {
    // 11 forked 12 and died while the list was made: init has adopted 12.
    const std::vector<ListedProcess> processes{listed(1, 0), listed(10, 1), listed(12, 1)};
    EXPECT_EQ(descendants(processes, {{10, 11}, {11, 12}}, {{10, 1}}, true, 0),
              (Members{{10, 1}, {11, 1}, {12, 1}}));
}

TEST(ProcessTree, TakesAChildThatIsNotListedYet) {
    EXPECT_EQ(descendants({listed(10, 1)}, {{10, 15}}, {{10, 1}}, true, 0),
              (Members{{10, 1}, {15, 1}}));
}

TEST(ProcessTree, JoinsTheBitsOfSeveralRoots) {
    const std::vector<ListedProcess> processes{listed(10, 1), listed(11, 10), listed(12, 11)};
    EXPECT_EQ(descendants(processes, {}, {{10, 1}, {11, 2}}, true, 0),
              (Members{{10, 1}, {11, 3}, {12, 3}}));
}

TEST(ProcessTree, LeavesOutKernelThreadsAndTheToolItself) {
    std::vector<ListedProcess> processes{listed(1, 0), listed(2, 1), listed(30, 1), listed(31, 30)};
    processes[1].kernel_thread = true;
    EXPECT_EQ(descendants(processes, {}, {{1, 1}}, true, 30), (Members{{1, 1}}));
}

TEST(ProcessTree, EndsOnCirclesOfReusedPids) {
    const std::vector<ListedProcess> processes{listed(10, 11), listed(11, 10)};
    EXPECT_EQ(descendants(processes, {{11, 10}, {10, 11}}, {{10, 1}}, true, 0),
              (Members{{10, 1}, {11, 1}}));
}

TEST(ProcessTree, IgnoresARootThatDoesNotExist) {
    EXPECT_TRUE(descendants({listed(10, 1)}, {}, {{99, 1}}, true, 0).empty());
}

} // namespace
} // namespace speedbump::tree
