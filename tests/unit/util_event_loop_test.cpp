// SPDX-License-Identifier: MIT
#include "util/event_loop.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace speedbump {
namespace {

struct Pipe {
    Pipe() {
        int ends[2];
        if (pipe(ends) != 0) return;
        to_read = Fd(ends[0]);
        to_write = Fd(ends[1]);
    }
    void fill() const { EXPECT_EQ(write(to_write.get(), "", 1), 1); }
    Fd to_read, to_write;
};

epoll_event next(const Fd& epoll) {
    epoll_event event{};
    EXPECT_EQ(epoll_wait(epoll.get(), &event, 1, 1000), 1);
    return event;
}

TEST(EventLoop, ADescriptorIsKnownByItsNumber) {
    const auto epoll = make_epoll();
    ASSERT_TRUE(epoll);
    const Pipe one, other;
    ASSERT_TRUE(watch_descriptor(*epoll, one.to_read.get()));
    ASSERT_TRUE(watch_descriptor(*epoll, other.to_read.get()));
    other.fill();
    EXPECT_EQ(next(*epoll).data.fd, other.to_read.get());
}

TEST(EventLoop, OrByWhatIsSaidOfIt) {
    const auto epoll = make_epoll();
    ASSERT_TRUE(epoll);
    const Pipe one;
    ASSERT_TRUE(watch_descriptor(*epoll, one.to_read.get(), 1ULL << 40));
    one.fill();
    EXPECT_EQ(next(*epoll).data.u64, 1ULL << 40);
    EXPECT_EQ(watch_descriptor(*epoll, one.to_read.get()).error().error_number, EEXIST);
}

} // namespace
} // namespace speedbump
