// SPDX-License-Identifier: MIT
#include "session/members.h"

#include <gtest/gtest.h>

namespace speedbump::session {
namespace {

using std::chrono::nanoseconds;

engine::Counts counts(uint32_t target, uint32_t tgid, uint64_t hits) {
    return {target, static_cast<pid_t>(tgid), hits,
            hits,   nanoseconds(10),          nanoseconds(static_cast<int>(hits))};
}

uint64_t hits_of(const std::vector<engine::Counts>& all) {
    uint64_t sum = 0;
    for (const engine::Counts& one : all) sum += one.hits;
    return sum;
}

void nothing_to_forget(uint32_t, uint32_t) {
    ADD_FAILURE();
}

TEST(Members, AreFoundByTgidAndWhileTheyLiveByPid) {
    Members members;
    members.add({100, 7, "server", 1, true, {}});
    ASSERT_NE(members.find(100), nullptr);
    ASSERT_EQ(members.find_pid(7), members.find(100));
    members.ended(*members.find(100));
    EXPECT_EQ(members.find_pid(7), nullptr);
    EXPECT_FALSE(members.find(100)->alive);
    EXPECT_EQ(members.find(101), nullptr);
}

TEST(Members, CountsOfTheLivingAreReportedUnderThePidThatIsSeenHere) {
    Members members;
    members.add({100, 7, "server", 1, true, {}});
    const auto result = members.fold({counts(3, 100, 5)}, nothing_to_forget);
    ASSERT_EQ(result.size(), 1u);
    EXPECT_EQ(result[0].process, 7);
    EXPECT_EQ(result[0].target, 3u);
    EXPECT_EQ(result[0].hits, 5u);
    EXPECT_EQ(result[0].measured, nanoseconds(5));
}

TEST(Members, CountsOfAnEndedProcessAreTakenOverOnce) {
    Members members;
    members.add({100, 7, "server", 1, true, {}});
    members.ended(*members.find(100));
    int forgotten = 0;
    const auto forget = [&](uint32_t target, uint32_t tgid) {
        EXPECT_EQ(target, 3u);
        EXPECT_EQ(tgid, 100u);
        ++forgotten;
    };
    EXPECT_EQ(hits_of(members.fold({counts(3, 100, 5)}, forget)), 5u);
    EXPECT_EQ(forgotten, 1);
    const auto later = members.fold({}, nothing_to_forget);
    ASSERT_EQ(later.size(), 1u);
    EXPECT_EQ(later[0].hits, 5u);
    EXPECT_EQ(later[0].process, 7);
}

TEST(Members, AnEndedProcessWithoutCountsIsForgotten) {
    Members members;
    for (uint32_t tgid = 1; tgid <= 10000; ++tgid)
        members.ended(members.add({tgid, static_cast<pid_t>(tgid), "child", 1, true, {}}));
    EXPECT_TRUE(members.crowded());
    (void)members.fold({}, nothing_to_forget);
    EXPECT_TRUE(members.all().empty());
    EXPECT_FALSE(members.crowded());
}

TEST(Members, NoTotalChangesWhenManyHaveEnded) {
    Members members;
    uint64_t expected = 0;
    for (uint32_t tgid = 1; tgid <= 5000; ++tgid) {
        members.ended(members.add({tgid, static_cast<pid_t>(tgid), "child", 1, true, {}}));
        expected += tgid;
        (void)members.fold({counts(0, tgid, tgid)}, [](uint32_t, uint32_t) {});
    }
    const auto result = members.fold({}, nothing_to_forget);
    EXPECT_EQ(hits_of(result), expected);
    EXPECT_EQ(members.all().size(), 1024u);
    EXPECT_EQ(result.size(), 1025u); // and those of process 0
    EXPECT_EQ(result[0].process, 0);
}

TEST(Members, ANumberThatIsUsedAgainIsANewProcess) {
    Members members;
    members.ended(members.add({100, 7, "old", 1, true, {}}));
    members.add({100, 8, "new", 1, true, {}});
    EXPECT_EQ(hits_of(members.fold({counts(0, 100, 2)}, nothing_to_forget)), 2u);
    ASSERT_NE(members.find(100), nullptr);
    EXPECT_EQ(members.find(100)->command, "new");
    EXPECT_EQ(members.find_pid(7), nullptr);
    EXPECT_EQ(members.find_pid(8), members.find(100));
}

} // namespace
} // namespace speedbump::session
