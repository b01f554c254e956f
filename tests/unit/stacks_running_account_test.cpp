// SPDX-License-Identifier: MIT
#include "stacks/running_account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <variant>
#include <vector>

#include "util/clock.h"

namespace speedbump::stacks {
namespace {

using std::chrono::nanoseconds;
using ::testing::Each;
using ::testing::ElementsAre;

// Burns CPU time of this process, and takes a sample now and then.
uint64_t settled(RunningAccount& account, int samples, nanoseconds burnt, nanoseconds period) {
    const auto end = process_cpu_time(getpid()).value() + burnt;
    while (process_cpu_time(getpid()).value() < end) {
    }
    for (int i = 0; i < samples; ++i) account.add(Pending{});
    account.look();
    uint64_t periods = 0;
    account.settle(period, [&](RunningAccount::Sample&& sample, uint64_t times) {
        EXPECT_TRUE(std::holds_alternative<Pending>(sample));
        periods += times;
    });
    return periods;
}

constexpr nanoseconds kPeriod = std::chrono::milliseconds(1);

TEST(RunningAccount, TicksThatWereLateStandForTheCpuTimeOfTheProcess) {
    RunningAccount account(getpid());
    const uint64_t first = settled(account, 20, 100 * kPeriod, kPeriod);
    EXPECT_GE(first, 100u);
    EXPECT_LT(first, 150u);
    EXPECT_EQ(settled(account, 0, 100 * kPeriod, kPeriod), 0u); // for those that come
    EXPECT_GE(settled(account, 10, 100 * kPeriod, kPeriod), 200u);
}

TEST(RunningAccount, TicksByChanceStandForIt) {
    RunningAccount account(getpid());
    EXPECT_LT(settled(account, 120, 100 * kPeriod, kPeriod), 110u);
    EXPECT_LT(settled(account, 500, nanoseconds(0), kPeriod), 10u);
}

TEST(RunningAccount, OfATimeOfFewPeriodsEachTickIsOne) {
    RunningAccount account(getpid());
    EXPECT_EQ(settled(account, 2, kPeriod / 2, kPeriod), 2u);
    EXPECT_EQ(settled(account, 0, 10 * kPeriod, kPeriod), 0u);
    EXPECT_EQ(settled(account, 1, kPeriod, kPeriod), 1u);
}

TEST(RunningAccount, CountsTheSamplesOfAProcessThatIsGone) {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    RunningAccount account(child);
    waitpid(child, nullptr, 0);
    account.look();
    account.add(Unread::kUnreadable);
    account.add(Pending{});
    account.add(Unread::kNoRoom);
    std::vector<uint64_t> times;
    std::vector<std::optional<Unread>> unread;
    account.settle(kPeriod, [&](RunningAccount::Sample&& sample, uint64_t periods) {
        const Unread* why = std::get_if<Unread>(&sample);
        unread.push_back(why != nullptr ? std::optional(*why) : std::nullopt);
        times.push_back(periods);
    });
    EXPECT_THAT(unread, ElementsAre(Unread::kUnreadable, std::nullopt, Unread::kNoRoom));
    EXPECT_THAT(times, Each(1u));
}

TEST(RunningAccount, WhatCouldNotBeReadTakesItsShareOfTheTime) {
    RunningAccount account(getpid());
    for (int i = 0; i < 50; ++i) account.add(Unread::kNoRoom);
    uint64_t read = 0, unread = 0;
    const auto end = process_cpu_time(getpid()).value() + 100 * kPeriod;
    while (process_cpu_time(getpid()).value() < end) {
    }
    for (int i = 0; i < 50; ++i) account.add(Pending{});
    account.look();
    account.settle(kPeriod, [&](RunningAccount::Sample&& sample, uint64_t periods) {
        (std::holds_alternative<Pending>(sample) ? read : unread) += periods;
    });
    EXPECT_GE(read + unread, 100u);
    EXPECT_LE(read > unread ? read - unread : unread - read, 1u);
}

} // namespace
} // namespace speedbump::stacks
