// SPDX-License-Identifier: MIT
// Trials in short slices, over engines that touch no process.
#include "experiment/trial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "../unit/fake_engines.h"
#include "../unit/waiting_process.h"
#include "engine/engines.h"
#include "experiment/guard.h"
#include "targets/parser.h"
#include "util/clock.h"

extern "C" {
__attribute__((noinline, used, visibility("default"))) int trial_test_target(int x) noexcept {
    __asm__ volatile("");
    return x + 1;
}
}

namespace speedbump::experiment {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

class TrialOverFakes : public testing::Test {
  protected:
    void SetUp() override {
        const targets::ParseOutcome parsed =
            targets::parse_targets("+exe:trial_test_target delay=0\n", "t");
        auto tree = std::make_shared<engine::FakeTree>(faults);
        tree->exists(child.pid(), getpid());
        probes = std::make_shared<engine::FakeProbes>(faults);
        probes->able.schedule = true;
        probes->make_schedule(1);
        engine::Engines engines;
        engines.tree = std::move(tree);
        engines.probes = probes;
        engines.mappings = std::make_unique<engine::FakeMappings>();
        session::SessionOptions options;
        options.pids = {child.pid()};
        options.columns = 1;
        auto attached = session::Session::over(std::move(engines), options, parsed.file,
                                               [](const std::string&) {});
        ASSERT_TRUE(attached) << attached.error().message;
        session = std::move(*attached);
    }

    engine::Faults faults;
    test::WaitingProcess child;
    std::shared_ptr<engine::FakeProbes> probes;
    std::unique_ptr<session::Session> session;
    const std::vector<std::unique_ptr<ProgressPoint>> points;
};

TEST_F(TrialOverFakes, WhereNoSliceIsEverWrittenInTimeItEnds) {
    probes->schedule_takes = 3ms; // twice that is more than a start lies ahead
    Trial trial(*session, points, {.slice = 4ms, .targets = {{{0}, 64us}}});
    ASSERT_TRUE(trial.begin());
    Result<void> ran;
    for (int i = 0; i < 1000 && ran; ++i) ran = trial.go_on(1ms);
    ASSERT_FALSE(ran);
    EXPECT_EQ(ran.error().kind, ErrorKind::kTimeout);
    EXPECT_THAT(ran.error().message, HasSubstr("no CPU in time"));
    EXPECT_EQ(trial.measured().slices(), 0u);
    EXPECT_EQ(probes->shared.end_slice, 0u);
}

TEST(Starts, EndAfterManyInVainInARow) {
    Starts starts;
    for (int round = 0; round < 5; ++round) {
        for (int i = 0; i < 99; ++i) EXPECT_TRUE(starts.note(false));
        EXPECT_TRUE(starts.note(true));
    }
    for (int i = 0; i < 99; ++i) EXPECT_TRUE(starts.note(false));
    EXPECT_FALSE(starts.note(false));
}

// A hit of a process that was stopped meanwhile spoils no mean.
TEST_F(TrialOverFakes, ColumnsTellWhatDelaysAdd) {
    Columns columns(*session, points, {{0}}, {});
    ASSERT_TRUE(columns.set());
    columns.clear();
    constexpr auto kSlice = 50ms;
    columns.begin(monotonic_ns() + nanoseconds(1h).count(), kSlice);
    for (int slice = 0; slice < 3; ++slice)
        session->schedule()->add(std::vector<nanoseconds>{10us});
    probes->by_slice[0] = {1000, 0, 0, 0, 60'000'000'000};
    probes->by_slice[1] = {499'000, 0, 0, 0, 49'900'000};
    probes->by_slice[2] = {10, 0, 10, 101'000, 0};
    EXPECT_EQ(columns.take().targets.at(0).injected_ns, 0u);
    EXPECT_EQ(columns.take().targets.at(0).injected_ns, 0u);
    const SliceReading::Column delayed = columns.take().targets.at(0);
    EXPECT_EQ(delayed.calls, 10u);
    EXPECT_EQ(delayed.delays, 10u);
    // The many hits share what all CPUs have of a slice, besides the 100 ns of each.
    const double most = ns(kSlice) * static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
    EXPECT_NEAR(static_cast<double>(delayed.injected_ns), 100'000, 10 * most / 500e3 + 2);
}

// What calibration would take off is not in a scheduled hit's time.
TEST(Guard, GoesByAllThatDelaysTook) {
    const Settings settings = [] {
        Settings one;
        one.max_cpu = 0.5;
        one.max_slowdown = 100;
        return one;
    }();
    const auto at = [](uint64_t ms, nanoseconds took) {
        Subject::Readings readings;
        readings.at_ns = 1'000'000'000 + ms * 1'000'000;
        readings.progress = {{ms, readings.at_ns}};
        readings.targets = {{.time = -took, .took = took, .calls = ms}, {}};
        return readings;
    };
    Guard guard(settings);
    EXPECT_FALSE(guard.look(at(0, 0ms), 1e6));
    EXPECT_FALSE(guard.look(at(100, 49ms), 1e6));
    const auto why = guard.look(at(200, 49ms + 60ms), 1e6);
    ASSERT_TRUE(why);
    EXPECT_THAT(*why, HasSubstr("0.60 CPUs"));
    guard.begin();
    EXPECT_FALSE(guard.look(at(300, 500ms), 1e6)); // nothing before counts
}

} // namespace
} // namespace speedbump::experiment
