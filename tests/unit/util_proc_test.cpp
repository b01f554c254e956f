// SPDX-License-Identifier: MIT
#include "util/proc.h"

#include <gtest/gtest.h>
#include <unistd.h>

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

} // namespace
} // namespace speedbump
