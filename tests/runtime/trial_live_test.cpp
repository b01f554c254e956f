// SPDX-License-Identifier: MIT
// Trials of many targets in short slices, on real probes. Needs root.
#include "experiment/trial.h"

#include <thread>

#include "experiment/model/sequence.h"
#include "live.h"

namespace speedbump::experiment {
namespace {

using namespace std::chrono_literals;
using session::Session;

class TrialLive : public session::LiveSession {
  protected:
    // Calls of work_push are the progress, those of work_nop and work_step are delayed.
    void begin(uint32_t columns) {
        const targets::ParseOutcome parsed =
            targets::parse_targets("+exe:work_nop\n+exe:work_step\n", "targets.txt");
        session::SessionOptions options;
        options.pids = {puppet.pid()};
        options.engine = session::EngineChoice::kBpf;
        options.columns = columns;
        options.defaults.delay = 0ns;
        auto attached = Session::attach(options, parsed.file, [](const std::string&) {});
        ASSERT_TRUE(attached) << attached.error().message;
        session = std::move(*attached);
        const auto spec = parse_progress("native:exe:work_push");
        auto opened = open_progress({*spec}, {}, *session, [](const std::string&) {});
        ASSERT_TRUE(opened) << opened.error().message;
        points = std::move(*opened);
        session->arm();
    }
    // Until the end of the test.
    void keep_calling() {
        for (const char* name : {"work_push", "work_nop", "work_step"})
            puppet.send(std::string("repeat ") + name);
        for (int i = 0; i < 3; ++i) puppet.hear();
    }

    std::unique_ptr<Session> session;
    std::vector<std::unique_ptr<ProgressPoint>> points;
    TrialPlan plan{.seed = 7, .slice = 4ms, .targets = {{{0}, 64us}, {{1}, 32us}}};
};

TEST_F(TrialLive, EverySliceHasTheDosesThatWereDrawn) {
    begin(plan.columns());
    keep_calling();
    Trial trial(*session, points, plan);
    ASSERT_TRUE(trial.begin());
    while (trial.measured().slices() < 600) ASSERT_TRUE(trial.go_on(200ms));
    trial.end();
    const Sliced& run = trial.measured();
    EXPECT_EQ(run.slice, 4ms);
    uint64_t units = 0;
    for (const uint64_t one : run.units[0]) units += one;
    EXPECT_GT(units, 0u);
    for (size_t target = 0; target < 2; ++target) {
        const SlicedTarget& slices = run.targets[target];
        EXPECT_EQ(slices.dose, plan.targets[target].dose);
        ASSERT_EQ(slices.steps.size(), run.slices());
        ASSERT_EQ(slices.injected_ns.size(), run.slices());
        double delays = 0, off_delays = 0, injected = 0, least = 0;
        for (size_t slice = 0; slice < run.slices(); ++slice) {
            const Step& step = slices.steps[slice];
            const double full = static_cast<double>(plan.targets[target].dose.count());
            const auto floor =
                static_cast<double>(session->floor(static_cast<uint32_t>(target)).count());
            // Less what a call with the probe costs anyway; a spin is never too short.
            const auto slowed = static_cast<double>(slices.delays[slice]);
            least += slowed * (full * share_of(step.level) * 0.9 - floor);
            injected += static_cast<double>(slices.injected_ns[slice]);
            (step.on ? delays : off_delays) += slowed;
        }
        EXPECT_GT(delays, 0);
        EXPECT_GE(slices.calls, static_cast<uint64_t>(delays));
        // A hit whose thread had no CPU for 200 ms is counted in a later slice.
        EXPECT_LT(off_delays, delays / 1000);
        EXPECT_GT(injected, least);
        if (trial.gaps() > 0) continue;
        for (size_t slice = 0; slice < run.slices(); ++slice) {
            const Step drawn =
                stage_of(plan.seed, target, slice / kStageSlices)[slice % kStageSlices];
            EXPECT_EQ(slices.steps[slice].on, drawn.on);
            EXPECT_EQ(slices.steps[slice].level, drawn.level);
        }
    }
}

// Who does not come back ends all delays by that; who comes back goes on.
TEST_F(TrialLive, AScheduleThatRanOutIsBegunAnew) {
    begin(plan.columns());
    keep_calling();
    Trial trial(*session, points, plan);
    ASSERT_TRUE(trial.begin());
    ASSERT_TRUE(trial.go_on(100ms));
    std::this_thread::sleep_for(session::Schedule::kRing * 4ms + 100ms);
    const auto delays = [&] {
        uint64_t sum = 0;
        const auto all = session->counts();
        for (const engine::Counts& counts : *all) sum += counts.delays;
        return sum;
    };
    const uint64_t before = delays();
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(delays(), before);
    const uint64_t gaps = trial.gaps();
    while (trial.gaps() == gaps) ASSERT_TRUE(trial.go_on(20ms));
    const size_t slices = trial.measured().slices();
    while (trial.measured().slices() < slices + 10) ASSERT_TRUE(trial.go_on(50ms));
    EXPECT_GT(delays(), before);
}

// As after a guard: what was drawn goes on where it had ended.
TEST_F(TrialLive, GoesOnAfterItsEnd) {
    begin(plan.columns());
    keep_calling();
    Trial trial(*session, points, plan);
    ASSERT_TRUE(trial.begin());
    while (trial.measured().slices() < 100) ASSERT_TRUE(trial.go_on(100ms));
    trial.end();
    const size_t slices = trial.measured().slices();
    const auto before = session->totals();
    ASSERT_TRUE(before);
    auto after = session->totals();
    // Its thread may have to wait for a CPU.
    for (int i = 0; i < 300 && after && (*after)[0].hits == (*before)[0].hits; ++i) {
        ASSERT_TRUE(session->run_for(100ms));
        after = session->totals();
    }
    ASSERT_TRUE(after);
    EXPECT_GT((*after)[0].hits, (*before)[0].hits);
    EXPECT_LE((*after)[0].delays, (*before)[0].delays + 1); // the one that was under way
    ASSERT_TRUE(trial.begin());
    while (trial.measured().slices() < slices + 100) ASSERT_TRUE(trial.go_on(100ms));
    trial.end();
    const SlicedTarget& target = trial.measured().targets[0];
    for (size_t slice = 0; slice < trial.measured().slices() && trial.gaps() == 0; ++slice) {
        const Step drawn = stage_of(plan.seed, 0, slice / kStageSlices)[slice % kStageSlices];
        EXPECT_EQ(target.steps[slice].on, drawn.on) << slice;
    }
}

TEST_F(TrialLive, LeavesTheTargetsAsTheyWere) {
    begin(plan.columns());
    {
        Trial trial(*session, points, plan);
        ASSERT_TRUE(trial.begin());
        ASSERT_TRUE(trial.go_on(20ms));
    }
    targets::Options change;
    change.delay = 20ms;
    ASSERT_TRUE(session->set("", change));
    EXPECT_GE(puppet.call("work_nop"), 19ms);
    EXPECT_GE(puppet.call("work_step"), 19ms);
}

TEST_F(TrialLive, WhatCannotBeTriedIsRefused) {
    begin(1);
    Trial trial(*session, points, plan);
    const auto begun = trial.begin();
    ASSERT_FALSE(begun);
    EXPECT_EQ(begun.error().kind, ErrorKind::kUnsupported);
}

} // namespace
} // namespace speedbump::experiment
