// SPDX-License-Identifier: MIT
#include "stacks/thread_account.h"

#include <gtest/gtest.h>

namespace speedbump::stacks {
namespace {

constexpr uint64_t kMs = 1'000'000;

// A thread as a look finds it, with what it has waited and run so far, in ms.
sb_thread found(uint64_t waited, uint64_t ran, uint64_t switches, bool on_cpu = false) {
    sb_thread thread{};
    thread.tid = 7;
    thread.on_cpu = on_cpu ? 1 : 0;
    thread.waited_ns = waited * kMs;
    thread.ran_ns = ran * kMs;
    thread.still = {.switches = switches, .started_ns = 1};
    return thread;
}

TEST(ThreadAccount, WhatDidNeitherRunNorWaitSlept) {
    ThreadAccount account;
    account.book(found(100, 50, 4), 1000 * kMs); // of before nothing counts
    EXPECT_EQ(account.asleep_ns, 0u);
    EXPECT_EQ(account.waiting_ns, 0u);
    account.book(found(103, 52, 5), 1010 * kMs);
    EXPECT_EQ(account.waiting_ns, 3 * kMs);
    EXPECT_EQ(account.asleep_ns, 5 * kMs);
    account.book(found(103, 52, 5), 1030 * kMs);
    EXPECT_EQ(account.waiting_ns, 3 * kMs);
    EXPECT_EQ(account.asleep_ns, 25 * kMs);
}

TEST(ThreadAccount, WhatWasTakenOffItsCpuDidNotSleep) {
    ThreadAccount account;
    account.book(found(0, 0, 1, true), 0);
    account.book(found(0, 6, 1, true), 10 * kMs); // a hypervisor had the rest
    EXPECT_EQ(account.asleep_ns, 0u);
    account.book(found(0, 10, 3, true), 20 * kMs); // it was off in between
    EXPECT_EQ(account.asleep_ns, 6 * kMs);
    sb_thread preempted = found(1, 15, 6, true);
    preempted.preempted = 3;
    account.book(preempted, 30 * kMs);
    EXPECT_EQ(account.asleep_ns, 6 * kMs);
    EXPECT_EQ(account.waiting_ns, 1 * kMs);
}

TEST(ThreadAccount, BeginsAnewForAnotherThreadWithTheId) {
    ThreadAccount account;
    account.book(found(0, 0, 1), 0);
    account.book(found(0, 0, 1), 10 * kMs);
    account.ran_at.emplace();
    sb_thread other = found(0, 3, 1);
    other.still.started_ns = 2;
    account.book(other, 20 * kMs);
    EXPECT_EQ(account.asleep_ns, 0u);
    EXPECT_FALSE(account.ran_at);
    other.ran_ns = 5 * kMs;
    account.book(other, 30 * kMs);
    EXPECT_EQ(account.asleep_ns, 8 * kMs);
}

TEST(ThreadAccount, ClocksThatDisagreeGiveNoTimes) {
    ThreadAccount account;
    account.book(found(10, 10, 1), 100 * kMs);
    account.book(found(9, 9, 2), 99 * kMs);
    EXPECT_EQ(account.asleep_ns, 0u);
    EXPECT_EQ(account.waiting_ns, 0u);
    account.book(found(9, 29, 3), 101 * kMs); // it ran for longer than passed
    EXPECT_EQ(account.asleep_ns, 0u);
}

TEST(ThreadAccount, WaitsAtAStackThatIsActive) {
    ThreadAccount account;
    account.wait_at({});
    ASSERT_TRUE(account.waits_at);
    EXPECT_TRUE(account.waits_at->stack.thread.active);
}

TEST(ThreadAccount, TakesWholePeriods) {
    uint64_t time = 35 * kMs;
    EXPECT_EQ(take_periods(time, std::chrono::milliseconds(10)), 3u);
    EXPECT_EQ(time, 5 * kMs);
    EXPECT_EQ(take_periods(time, std::chrono::milliseconds(10)), 0u);
    EXPECT_EQ(time, 5 * kMs);
}

TEST(Thread, IsAsleepWhereItHasNoCpuAndWantsNone) {
    sb_thread thread{};
    EXPECT_TRUE(is_asleep(thread));
    thread.runnable = 1;
    EXPECT_FALSE(is_asleep(thread));
    thread = {};
    thread.on_cpu = 1;
    EXPECT_FALSE(is_asleep(thread));
}

} // namespace
} // namespace speedbump::stacks
