// SPDX-License-Identifier: MIT
#include "util/channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "util/fd.h"

namespace speedbump {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class Channel : public testing::Test {
  protected:
    void SetUp() override {
        int ends[2];
        ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
        ours_ = Fd(ends[0]);
        theirs_ = Fd(ends[1]);
    }

    Fd ours_;
    Fd theirs_;
};

TEST_F(Channel, IsWaitedForUntilThereIsSomethingToRead) {
    EXPECT_FALSE(wait_readable(ours_.get(), Clock::now() + 1ms));
    ASSERT_EQ(send_packet(theirs_.get(), "x", {}), 0);
    EXPECT_TRUE(wait_readable(ours_.get(), Clock::now() + 1min));
    EXPECT_TRUE(wait_readable(ours_.get(), Clock::time_point::max()));
}

TEST_F(Channel, AHangUpEndsTheWait) {
    theirs_.reset();
    EXPECT_TRUE(wait_readable(ours_.get(), Clock::now() + 1min));
}

// Else what is sent without end would be read without end.
TEST_F(Channel, AfterTheDeadlineEvenWhatWaitsIsNotRead) {
    ASSERT_EQ(send_packet(theirs_.get(), "x", {}), 0);
    EXPECT_FALSE(wait_readable(ours_.get(), Clock::now()));
}

TEST_F(Channel, OneThatDoesNotReadHoldsNobodyUp) {
    const std::string packet(16 * 1024, 'x');
    int sent = 0;
    while (send_packet(ours_.get(), packet, {}) == 0) ++sent;
    EXPECT_GT(sent, 0);
    EXPECT_EQ(send_packet(ours_.get(), packet, {}), EAGAIN);
}

} // namespace
} // namespace speedbump
