// SPDX-License-Identifier: MIT
// Live control of a session: what no command line reaches. Needs root, and the puppet program.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <thread>
#include <vector>

#include "live.h"
#include "stacks/sampler.h"
#include "util/clock.h"
#include "util/fd.h"

namespace speedbump::session {
namespace {

using namespace std::chrono_literals;

// All delays so far.
engine::Counts sum_of(Session& session) {
    engine::Counts sum;
    const auto all = session.counts();
    EXPECT_TRUE(all);
    if (!all) return sum;
    for (const engine::Counts& counts : *all) {
        sum.delays += counts.delays;
        sum.requested += counts.requested;
    }
    return sum;
}

// How long the first threads of processes have waited for a CPU so far.
nanoseconds waited_for_a_cpu(std::initializer_list<pid_t> pids) {
    nanoseconds sum{0};
    for (const pid_t pid : pids) {
        const std::string name = std::to_string(pid);
        std::ifstream file("/proc/" + name + "/task/" + name + "/schedstat");
        int64_t ran = 0, waited = 0;
        file >> ran >> waited;
        sum += nanoseconds(waited);
    }
    return sum;
}

// Has the puppet begin a call, and waits until it is in its delay.
void begin_delay(Session& session, Puppet& puppet) {
    const uint64_t before = sum_of(session).delays;
    puppet.send("call work_push 1");
    for (int ms = 0; ms < 30'000 && sum_of(session).delays == before; ++ms)
        std::this_thread::sleep_for(1ms);
}

// How long a 10 s call lasts on once `end` has run, less what the two waited for a CPU; the best of
// some, as the host takes CPUs away as well.
nanoseconds end_of_spin(Puppet& puppet, const std::function<Session&()>& begin,
                        const std::function<void()>& end) {
    nanoseconds best = 10s;
    for (int i = 0; i < 5; ++i) {
        begin_delay(begin(), puppet);
        const nanoseconds waited = waited_for_a_cpu({::getpid(), puppet.pid()});
        const auto start = Clock::now();
        end();
        puppet.hear();
        const nanoseconds spent = Clock::now() - start;
        best = std::min(best, spent - (waited_for_a_cpu({::getpid(), puppet.pid()}) - waited));
    }
    std::printf("ends after %.3f ms\n", static_cast<double>(best.count()) / 1e6);
    return best;
}

TEST_F(LiveSession, DelaysNothingBeforeItIsArmed) {
    const auto session = attach("+exe:work_push delay=20ms");
    puppet.call("work_push");
    EXPECT_EQ(sum_of(*session).delays, 0u);
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
    const nanoseconds before = sum_of(*session).requested;
    EXPECT_GE(puppet.call("work_nop"), 19ms);
    EXPECT_EQ(sum_of(*session).requested - before, 20ms);
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
    EXPECT_EQ(sum_of(*session).delays, 1u);
    EXPECT_GE(std::max(first, second), 19ms);
    targets::Options later;
    later.every = 1;
    later.start = 1h;
    EXPECT_EQ(*session->set("", later), 1u);
    puppet.call("work_push");
    EXPECT_EQ(sum_of(*session).delays, 1u);
}

TEST_F(LiveSession, PauseEndsASpinAndResumeGoesOn) {
    const auto session = attach("+exe:work_push delay=10s");
    const nanoseconds ended = end_of_spin(
        puppet,
        [&]() -> Session& {
            session->resume();
            return *session;
        },
        [&] { session->pause(); });
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
    const auto begin = [&]() -> Session& {
        session = attach("+exe:work_push delay=10s");
        session->arm();
        return *session;
    };
    EXPECT_LT(end_of_spin(puppet, begin, [&] { session->pause(); }), 10ms);
    begin_delay(begin(), puppet);
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

// An event that nothing sets going again: of a process that has ended.
Fd dead_event() {
    const pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    perf_event_attr attributes{};
    attributes.size = sizeof(attributes);
    attributes.type = PERF_TYPE_SOFTWARE;
    attributes.config = PERF_COUNT_SW_DUMMY;
    attributes.read_format = PERF_FORMAT_TOTAL_TIME_RUNNING;
    Fd event(static_cast<int>(
        syscall(SYS_perf_event_open, &attributes, child, -1, -1, PERF_FLAG_FD_CLOEXEC)));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    return event;
}

// Stops this program's perf events for good, as their CPU's going offline does: time stands still
// for them, and enabling them (as the watch of mappings does when forks get many or few on this
// host) does not help. How many there were.
int stop_perf_events() {
    const Fd dead = dead_event();
    std::vector<int> events;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code gone; // the iterator's own descriptor is listed as well
        if (std::filesystem::read_symlink(entry, gone) != "anon_inode:[perf_event]") continue;
        const int fd = std::stoi(entry.path().filename());
        if (fd != dead.get()) events.push_back(fd);
    }
    int stopped = 0;
    for (const int fd : events)
        if (ioctl(fd, PERF_EVENT_IOC_DISABLE, 0) == 0 && dup3(dead.get(), fd, O_CLOEXEC) == fd)
            ++stopped;
    return stopped;
}

TEST_F(LiveSession, NoticesALibraryAlthoughItsPerfEventsDied) {
    const auto session = attach("+exe:work_push delay=0\n+libslowlib.so:lib_work delay=20ms\n");
    session->arm();
    ASSERT_GT(stop_perf_events(), 0);
    puppet.load_library();
    // Turns of the session, of which each lasts 100 ms at least: some 2 s are what it takes.
    int turns = 0;
    while (turns++ < 100 && puppet.call("lib_work") < 19ms) ASSERT_TRUE(session->run_for(100ms));
    std::printf("noticed after %d turns\n", turns);
    EXPECT_GE(puppet.call("lib_work"), 19ms);
    ASSERT_THAT(warnings, testing::SizeIs(1));
    EXPECT_NE(warnings[0].find("records of new mappings were lost"), std::string::npos);
}

TEST_F(LiveSession, SamplesAgainAlthoughItsClocksDied) {
    auto sampler = stacks::StackSampler::open(1ms);
    ASSERT_TRUE(sampler) << sampler.error().message;
    const pid_t busy = fork();
    for (volatile bool forever = true; busy == 0 && forever;) continue;
    EXPECT_TRUE((*sampler)->add_process(busy, nullptr));
    uint64_t samples = 0;
    const auto drain = [&] {
        std::this_thread::sleep_for(50ms);
        (*sampler)->drain([&](const stacks::ThreadSample&) { ++samples; }, 1s);
    };
    for (int turns = 0; turns < 200 && samples == 0; ++turns) drain();
    EXPECT_GT(samples, 0u);
    EXPECT_EQ((*sampler)->gaps(), 0u);
    EXPECT_GT(stop_perf_events(), 0);
    drain();
    samples = 0;
    for (int turns = 0; turns < 200 && samples == 0; ++turns) drain();
    EXPECT_GT(samples, 0u);
    EXPECT_GT((*sampler)->gaps(), 0u);
    kill(busy, SIGKILL);
    waitpid(busy, nullptr, 0);
}

} // namespace
} // namespace speedbump::session
