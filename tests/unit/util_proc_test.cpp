// SPDX-License-Identifier: MIT
#include "util/proc.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

namespace speedbump {
namespace {

TEST(StatusField, IsALineOfItsOwn) {
    // the name is the process's own to choose
    const std::string status = "Name:\tUid: 7 NSpid:\nNgid:\t0\nUid:\t1\t2\t3\t4\nNSpid:\t12\t5\n";
    EXPECT_EQ(status_field(status, "Name"), "Uid: 7 NSpid:");
    EXPECT_EQ(status_field(status, "Uid"), "1\t2\t3\t4");
    EXPECT_EQ(status_field(status, "Ui"), "");
    EXPECT_EQ(status_field(status, "Gid"), "");
    EXPECT_EQ(status_field("Groups:\t \nLast:", "Groups"), "");
    EXPECT_EQ(status_field("Groups:\t \nLast:", "Last"), "");
}

TEST(StatusField, OfAProcess) {
    EXPECT_EQ(status_field(::getpid(), "Tgid"), std::to_string(::getpid()));
    EXPECT_EQ(status_field(0x7ffffff0, "Tgid"), "");
}

TEST(InnermostId, IsTheLast) {
    EXPECT_EQ(innermost_id("NSpid:\t12\t5\n"), 5);
    EXPECT_EQ(innermost_id("NSpid:\t12\n"), 12);
    EXPECT_EQ(innermost_id(""), 0);
}

TEST(Stat, IsReadWhateverTheNameIs) {
    for (const std::string name : {"plain", "a) S 1 (b", "", "two words)", "((", "\n"}) {
        const auto stat = parse_stat("42 (" + name + ") D 7 -1 18446744073709551615\n");
        ASSERT_TRUE(stat) << name;
        EXPECT_EQ(stat->name, name);
        EXPECT_EQ(stat->state, 'D');
        EXPECT_EQ(stat->numbers, (std::vector<uint64_t>{7, UINT64_MAX, UINT64_MAX}));
        EXPECT_EQ(stat->field(4), 7u);
        EXPECT_EQ(stat->field(3), 0u);
        EXPECT_EQ(stat->field(7), 0u);
    }
}

TEST(Stat, OtherTextIsRefused) {
    for (const char* text : {"", "42", "42 (name)", "42 (name) ", "42 (name) S", "42 )name( S 1 2",
                             "42 (name)S 1 2", "42 (name) SS 1 2"})
        EXPECT_FALSE(parse_stat(text)) << text;
    EXPECT_TRUE(parse_stat("42 (name) S one two")->numbers.empty());
}

TEST(Stat, OfThisThread) {
    const auto stat = read_stat("/proc/thread-self/stat");
    ASSERT_TRUE(stat);
    EXPECT_EQ(stat->state, 'R');
    EXPECT_EQ(stat->field(4), static_cast<uint64_t>(::getppid()));
    EXPECT_GE(stat->numbers.size(), 49u); // Linux 3.5 and later
    EXPECT_FALSE(read_stat("/proc/0/stat"));
}

TEST(IsEnding, OnlyOnceAllOfItEnds) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        char byte = 0;
        (void)!read(ends[0], &byte, 1);
        _exit(0);
    }
    EXPECT_FALSE(is_ending(child));
    // Nor is it when there is no descriptor left to look at it.
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    rlimit none = before;
    none.rlim_cur = 0;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    const bool is_thought_to_end = is_ending(child);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_FALSE(is_thought_to_end);
    ASSERT_EQ(write(ends[1], "x", 1), 1);
    siginfo_t info{};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
    EXPECT_TRUE(is_ending(child)) << "a zombie";
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_TRUE(is_ending(child));
}

TEST(IsEnding, NotOfAProcessWhoseFirstThreadHasEnded) {
    const pid_t child = fork();
    if (child == 0) {
        std::thread([] {
            for (;;) pause();
        }).detach();
        syscall(SYS_exit, 0); // of this thread alone
    }
    while (!has_lost_main_thread(child)) usleep(1000);
    EXPECT_FALSE(is_ending(child));
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
}

} // namespace
} // namespace speedbump
