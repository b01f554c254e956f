// SPDX-License-Identifier: MIT
// Live control of a session: what no command line reaches. Needs root, and the puppet program.
#include <functional>
#include <thread>

#include "live.h"
#include "util/clock.h"

namespace speedbump::session {
namespace {

using namespace std::chrono_literals;

// How long a 10 s call lasts on once `end` has run, the best of some: others use the CPUs as well.
nanoseconds end_of_spin(Puppet& puppet, const std::function<void()>& begin,
                        const std::function<void()>& end) {
    nanoseconds best = 10s;
    for (int i = 0; i < 5; ++i) {
        begin();
        puppet.send("call work_push 1");
        std::this_thread::sleep_for(100ms);
        const auto start = Clock::now();
        end();
        puppet.hear();
        best = std::min<nanoseconds>(best, Clock::now() - start);
    }
    std::printf("ends after %.3f ms\n", static_cast<double>(best.count()) / 1e6);
    return best;
}

TEST_F(LiveSession, DelaysNothingBeforeItIsArmed) {
    const auto session = attach("+exe:work_push delay=20ms");
    EXPECT_LT(puppet.call("work_push"), 10ms);
    session->arm();
    EXPECT_GE(puppet.call("work_push"), 19ms);
}

TEST_F(LiveSession, ChangesADelayOfTheTargetsNamed) {
    const auto session = attach("+exe:work_push delay=20ms\n+exe:work_nop delay=20ms\n");
    session->arm();
    targets::Options change;
    change.delay = 60ms;
    EXPECT_EQ(*session->set("work_push", change), 1u);
    EXPECT_GE(puppet.call("work_push"), 59ms);
    const nanoseconds other = puppet.call("work_nop");
    EXPECT_GE(other, 19ms);
    EXPECT_LT(other, 50ms);
    EXPECT_EQ(*session->set("*", change), 2u);
    EXPECT_GE(puppet.call("work_nop"), 59ms);
    EXPECT_EQ(*session->set("no_such", change), 0u);
}

TEST_F(LiveSession, ChangesEveryAndTheWindow) {
    const auto session = attach("+exe:work_push delay=20ms");
    session->arm();
    targets::Options change;
    change.every = 2;
    EXPECT_EQ(*session->set("", change), 1u);
    const nanoseconds first = puppet.call("work_push"), second = puppet.call("work_push");
    EXPECT_LT(std::min(first, second), 10ms);
    EXPECT_GE(std::max(first, second), 19ms);
    targets::Options later;
    later.every = 1;
    later.start = 1h;
    EXPECT_EQ(*session->set("", later), 1u);
    EXPECT_LT(puppet.call("work_push"), 10ms);
}

TEST_F(LiveSession, PauseEndsASpinAndResumeGoesOn) {
    const auto session = attach("+exe:work_push delay=10s");
    const nanoseconds ended = end_of_spin(
        puppet, [&] { session->resume(); }, [&] { session->pause(); });
    EXPECT_LT(ended, 10ms);
    EXPECT_LT(puppet.call("work_push"), 1s);
    const Snapshot snapshot = session->snapshot();
    EXPECT_FALSE(snapshot.armed);
    ASSERT_EQ(snapshot.counts.size(), 1u);
    EXPECT_EQ(snapshot.counts[0].hits, 5u); // the last call found it paused
    EXPECT_EQ(snapshot.counts[0].delays, 5u);
    EXPECT_LT(snapshot.counts[0].measured, 5s); // what was spun, not what was asked
}

TEST_F(LiveSession, DetachingEndsASpin) {
    std::unique_ptr<Session> session;
    const auto begin = [&] {
        session = attach("+exe:work_push delay=10s");
        session->arm();
    };
    EXPECT_LT(end_of_spin(puppet, begin, [&] { session->pause(); }), 10ms);
    begin();
    puppet.send("call work_push 1");
    std::this_thread::sleep_for(100ms);
    session.reset();
    EXPECT_LT(std::stoll(puppet.hear()), nanoseconds(2s).count());
}

TEST_F(LiveSession, CountsAgreeWithTheCallsAtAnyMoment) {
    const auto session = attach("+exe:work_push delay=0");
    session->arm();
    for (uint64_t calls = 1; calls <= 5; ++calls) {
        puppet.call("work_push");
        const Snapshot snapshot = session->snapshot();
        ASSERT_EQ(snapshot.counts.size(), 1u);
        EXPECT_EQ(snapshot.counts[0].hits, calls);
        EXPECT_EQ(snapshot.counts[0].process, puppet.pid());
    }
}

TEST_F(LiveSession, EndsWithTheLastProcess) {
    const auto session = attach("+exe:work_push delay=0");
    session->arm();
    kill(puppet.pid(), SIGKILL);
    const auto ran = session->run_for(10s);
    ASSERT_FALSE(ran);
    EXPECT_EQ(ran.error().kind, ErrorKind::kNotFound);
}

} // namespace
} // namespace speedbump::session
