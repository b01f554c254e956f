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

} // namespace
} // namespace speedbump
