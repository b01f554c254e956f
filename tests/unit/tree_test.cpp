// SPDX-License-Identifier: MIT
#include "tree/descent.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <utility>

#include "fake_engines.h"
#include "tree/look.h"

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

// A tree that remembers who was ever added.
class RememberingTree : public engine::FakeTree {
  public:
    using FakeTree::FakeTree;
    Result<bool> add_member(uint32_t tgid, uint64_t roots) override {
        added.insert(tgid);
        return FakeTree::add_member(tgid, roots);
    }
    std::set<uint32_t> added;
};

// A look at a tree in which all below 10 is to belong, but for those who may not.
class TreeLookTest : public testing::Test {
  protected:
    TreeLook look() {
        TreeQuestion question;
        question.roots = [](const auto&) -> Result<Members> { return Members{{10, 1}}; };
        question.may_belong = [this](const ListedProcess& process) {
            if (before_answer) before_answer();
            return !foreign.contains(process.tgid);
        };
        return look_at_tree(tree, question);
    }

    engine::Faults faults;
    RememberingTree tree{faults};
    std::set<uint32_t> foreign;
    std::function<void()> before_answer;
};

TEST_F(TreeLookTest, WhoMayNotBelongIsNoMemberThoughItIsBornMeanwhile) {
    tree.exists(10, 1);
    tree.exists(11, 10);
    foreign = {11, 12};
    before_answer = [this, made = false]() mutable { // the list has been made
        if (std::exchange(made, true)) return;
        for (const auto& [child, parent] : {std::pair(12, 11), std::pair(13, 10)}) {
            tree.exists(child, parent);
            tree.happens(TreeEvent::Type::kEdge, child, parent);
        }
    };
    const TreeLook done = look();
    EXPECT_EQ(tree.added, (std::set<uint32_t>{10, 13}));
    EXPECT_EQ(tree.members, (Members{{10, 1}, {13, 1}}));
    ASSERT_TRUE(done.members);
    EXPECT_EQ(done.members->size(), 2u);
}

TEST_F(TreeLookTest, WhoGainsRightsWhileItIsAddedIsTakenOutAgain) {
    tree.exists(10, 1);
    tree.exists(11, 10);
    before_answer = [this] {
        if (tree.members.contains(11)) foreign.insert(11); // its exec came after the first answer
    };
    const TreeLook done = look();
    EXPECT_TRUE(tree.added.contains(11));
    EXPECT_EQ(tree.members, (Members{{10, 1}}));
    ASSERT_TRUE(done.members);
    EXPECT_EQ(done.members->size(), 1u);
}

} // namespace
} // namespace speedbump::tree
