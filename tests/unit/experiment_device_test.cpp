// SPDX-License-Identifier: MIT
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "changed_documents.h"
#include "experiment/analysis.h"
#include "experiment/device_queue.h"
#include "experiment/device_spec.h"
#include "experiment/device_verdict.h"
#include "experiment/document.h"
#include "experiment/progress_spec.h"
#include "report/experiment.h"

using namespace speedbump::experiment;
using speedbump::ErrorKind;
using testing::HasSubstr;

namespace {

constexpr uint64_t kUs = 1000;
constexpr uint64_t kStart = 1'000'000; // 0 us
constexpr uint32_t kOwn = 7;           // process

// The calls of one thread or several, at times in us.
class Calls {
  public:
    void launch(uint64_t at, uint64_t queue, uint32_t tid = 1) {
        take(at, SB_PROGRESS_LAUNCHES | SB_DEVICE_HAS_QUEUE, queue, 0, 0x900, tid);
    }
    void record(uint64_t at, uint64_t event, uint64_t queue) {
        take(at, SB_PROGRESS_RECORDS | SB_DEVICE_HAS_QUEUE | SB_DEVICE_HAS_EVENT, queue, event,
             0x900, 1);
    }
    void wait_all(uint64_t from, uint64_t to) {
        take(from, SB_PROGRESS_WAITS, 0, 0, 0x800, 1);
        end(from, to, 0x800);
    }
    void wait_queue(uint64_t from, uint64_t to, uint64_t queue) {
        take(from, SB_PROGRESS_WAITS | SB_DEVICE_HAS_QUEUE, queue, 0, 0x800, 1);
        end(from, to, 0x800);
    }
    void wait_event(uint64_t from, uint64_t to, uint64_t event) {
        take(from, SB_PROGRESS_WAITS | SB_DEVICE_HAS_EVENT, 0, event, 0x800, 1);
        end(from, to, 0x800);
    }
    // One whose end is told.
    void timed_launch(uint64_t from, uint64_t to, uint64_t queue) {
        take(from, SB_PROGRESS_LAUNCHES | SB_PROGRESS_WAITS | SB_DEVICE_HAS_QUEUE, queue, 0, 0x700,
             1);
        end(from, to, 0x700);
    }
    void take(uint64_t at, uint32_t actions, uint64_t queue, uint64_t event, uint64_t place,
              uint32_t tid) {
        queues.take({kStart + at * kUs, 0, place, queue, event, kOwn, tid, 0, actions});
    }
    void end(uint64_t from, uint64_t to, uint64_t place) {
        queues.take({kStart + to * kUs, kStart + from * kUs, place, 0, 0, kOwn, 1, 0, 0});
    }
    DeviceReading at(uint64_t now) const { return queues.totals(kStart + now * kUs); }

    DeviceQueues queues;
};

int64_t us(nanoseconds time) {
    return time.count() / 1000;
}

} // namespace

TEST(DeviceSpec, FunctionsAndTheirArguments) {
    const auto spec = parse_device(
        "libd.so*:launch(_,stream),start(stream@32),note(event,stream):"
        "wait(stream),see(event),all,launch(_,stream)");
    ASSERT_TRUE(spec) << spec.error().message;
    EXPECT_EQ(spec->binary, "libd.so*");
    ASSERT_EQ(spec->functions.size(), 6u);
    const auto& launch = spec->functions[0];
    EXPECT_TRUE(launch.launches && launch.waits && !launch.records);
    EXPECT_EQ(launch.queue.number, 2u);
    EXPECT_FALSE(launch.queue.within);
    EXPECT_EQ(spec->functions[1].queue.number, 1u);
    EXPECT_EQ(spec->functions[1].queue.within, 32u);
    const auto& note = spec->functions[2];
    EXPECT_TRUE(note.records && !note.launches && !note.waits);
    EXPECT_EQ(note.event.number, 1u);
    EXPECT_EQ(note.queue.number, 2u);
    const auto& all = spec->functions[5];
    EXPECT_TRUE(all.waits && !all.launches);
    EXPECT_EQ(all.name, "all");
    EXPECT_EQ(all.queue.number + all.event.number, 0u);
}

TEST(DeviceSpec, CudaIsOneOfThem) {
    const auto cuda = parse_device("cuda");
    ASSERT_TRUE(cuda) << cuda.error().message;
    EXPECT_EQ(cuda->binary, "libcuda.so*");
    EXPECT_TRUE(cuda->may_lack);
    EXPECT_EQ(cuda->functions[0].name, "cuLaunchKernel");
    EXPECT_EQ(cuda->functions[0].queue.number, 9u);
    EXPECT_TRUE(parse_progress("device:cuda"));
}

TEST(DeviceSpec, RefusesWhatItIsNot) {
    for (const char* wrong :
         {"", "rocm", "lib:launch", ":launch:wait", "lib::wait", "lib:launch(:wait",
          "lib:launch(stream)x:wait", "lib:launch(queue):wait", "lib:launch(stream,stream):wait",
          "lib:launch(stream@x):wait", "lib:launch(stream@99999):wait", "lib:note(event):wait",
          "lib:launch,note(event):wait,note", "lib:launch,launch:wait", "lib:launch:wait,wait",
          "lib:launch):wait", "lib:launch((stream)):wait"}) {
        const auto spec = parse_device(wrong);
        ASSERT_FALSE(spec) << wrong;
        EXPECT_EQ(spec.error().kind, ErrorKind::kUsage);
        EXPECT_FALSE(parse_progress(std::string("device:") + wrong)) << wrong;
    }
}

TEST(DeviceQueues, IdleFromAWaitThatLeavesNothingToTheNextLaunch) {
    Calls calls;
    calls.wait_all(0, 1); // what was there before is done
    calls.launch(11, 5);
    calls.launch(20, 5);
    calls.wait_queue(30, 130, 5);
    calls.launch(230, 5);
    const DeviceReading reading = calls.at(300);
    EXPECT_EQ(us(reading.idle), 10 + 100);
    EXPECT_EQ(us(reading.wait), 1 + 100);
    // Launched at 20, not done at 30, done at 130; what was from 11 to 20 nobody saw.
    EXPECT_EQ(us(reading.busy), 110);
    EXPECT_EQ(us(reading.watched), 299);
    EXPECT_EQ(reading.launches, 3u);
    EXPECT_EQ(reading.waits, 2u);
}

TEST(DeviceQueues, OtherQueuesKeepTheDeviceBusy) {
    Calls calls;
    calls.wait_all(0, 1);
    calls.launch(10, 5);
    calls.launch(11, 6);
    calls.wait_queue(20, 100, 5);
    EXPECT_EQ(us(calls.at(150).idle), 9); // 6 may still be at work
    calls.wait_queue(150, 151, 6);
    EXPECT_EQ(us(calls.at(161).idle), 9 + 10);
}

TEST(DeviceQueues, AnEventIsReachedBeforeWhatWasLaunchedBehindIt) {
    Calls calls;
    calls.wait_all(0, 1);
    calls.launch(10, 5);
    calls.record(11, 77, 5);
    calls.launch(12, 5);
    calls.wait_event(20, 100, 77);
    EXPECT_EQ(us(calls.at(200).idle), 9);
    EXPECT_EQ(us(calls.at(200).busy), 90); // 10 to 100
    calls.record(200, 77, 5);
    calls.wait_event(201, 202, 77);
    EXPECT_EQ(us(calls.at(203).idle), 9 + 1);
}

TEST(DeviceQueues, AnEventThatNobodyRecordedTellsNothing) {
    Calls calls;
    calls.wait_all(0, 1);
    calls.launch(10, 5);
    calls.wait_event(20, 100, 77);
    EXPECT_EQ(us(calls.at(200).idle), 9);
    EXPECT_EQ(us(calls.at(200).wait), 81);
}

TEST(DeviceQueues, ALaunchDuringTheWaitIsNotWaitedFor) {
    Calls calls;
    calls.wait_all(0, 1);
    calls.launch(10, 5);
    calls.take(20, SB_PROGRESS_WAITS, 0, 0, 0x800, 1);
    calls.launch(30, 5, 2);
    calls.end(20, 100, 0x800);
    EXPECT_EQ(us(calls.at(200).idle), 9);
}

TEST(DeviceQueues, AWaitThatReturnsAtOnceProvesNoWork) {
    Calls calls;
    calls.wait_all(0, 1);
    calls.launch(10, 5);
    calls.wait_all(500, 503);
    const DeviceReading reading = calls.at(600);
    EXPECT_EQ(us(reading.busy), 0);
    EXPECT_EQ(us(reading.idle), 9 + 97);
}

TEST(DeviceQueues, LaunchesThatAreHeld) {
    Calls calls;
    calls.wait_all(0, 1);
    calls.timed_launch(10, 12, 5); // takes 2 us when nothing is queued
    calls.timed_launch(12, 14, 5);
    calls.timed_launch(14, 116, 5);
    calls.timed_launch(200, 302, 5);
    const DeviceReading reading = calls.at(400);
    EXPECT_EQ(us(reading.launching), 2 + 2 + 102 + 102);
    EXPECT_EQ(us(reading.held), 100 + 100);
    EXPECT_EQ(us(reading.unsure), 0);
    // The queue was full at 14, and full again at 302: it was not empty in between.
    EXPECT_EQ(us(reading.busy), 302 - 14);
    Calls never_empty;
    never_empty.timed_launch(10, 112, 5);
    EXPECT_EQ(us(never_empty.at(200).unsure), 102);
}

TEST(DeviceQueues, ACallThatWasLeftWithoutAReturnIsVoid) {
    Calls calls;
    calls.take(10, SB_PROGRESS_WAITS, 0, 0, 0x800, 1);
    calls.launch(50, 5); // at 0x900, above it: an exception ended the wait
    EXPECT_EQ(us(calls.at(100).wait), 40);
    calls.end(10, 60, 0x800);
    EXPECT_EQ(calls.at(100).waits, 0u);
    // Another thread's stack is another matter.
    calls.take(110, SB_PROGRESS_WAITS, 0, 0, 0x800, 1);
    calls.launch(120, 5, 2);
    calls.end(110, 130, 0x800);
    EXPECT_EQ(us(calls.at(200).wait), 40 + 20);
}

TEST(DeviceQueues, WhatIsLostIsNotGuessed) {
    Calls calls;
    calls.wait_all(0, 1);
    calls.queues.forget_all(kStart + 11 * kUs);
    EXPECT_EQ(us(calls.at(500).idle), 10);
    EXPECT_EQ(us(calls.at(500).watched), 10);
    EXPECT_EQ(calls.at(500).gaps, 1u);
    calls.wait_all(500, 501);
    calls.queues.keep_only({}, kStart + 511 * kUs); // it has ended
    EXPECT_EQ(us(calls.at(900).idle), 20);
}

TEST(DeviceQueues, ATargetThatMakesQueuesWithoutEndIsForgotten) {
    Calls calls;
    for (uint64_t queue = 0; queue < 20'000; ++queue) calls.launch(queue, queue);
    EXPECT_EQ(calls.at(20'000).launches, 20'000u);
    EXPECT_LT(calls.at(20'000).most_queued, 2u);
}

TEST(DeviceVerdict, ByWhoWaitsForWhom) {
    EXPECT_EQ(judge_device({0.0, 0.05}, {0.0, 1.0}), DeviceVerdict::kHostBound);
    EXPECT_EQ(judge_device({0.15, 0.2}, {0.7, 0.8}), DeviceVerdict::kHostBound);
    EXPECT_EQ(judge_device({0.0, 1.0}, {0.0, 0.05}), DeviceVerdict::kDeviceBound);
    EXPECT_EQ(judge_device({0.8, 0.9}, {0.0, 0.2}), DeviceVerdict::kDeviceBound);
    EXPECT_EQ(judge_device({0.4, 0.5}, {0.4, 0.6}), DeviceVerdict::kTurns);
    EXPECT_EQ(judge_device({0.0, 0.05}, {0.0, 0.05}), DeviceVerdict::kBalanced);
    EXPECT_EQ(judge_device({0.5, 0.6}, {0.0, 0.4}), DeviceVerdict::kUncertain);
    EXPECT_EQ(judge_device({0, 1}, {0, 1}), DeviceVerdict::kUncertain);
}

namespace {

// Four slices of 100 ms and 100 units each, with these shares of the time.
Document with_device(double wait, double idle, double busy, uint64_t most_queued = 4) {
    Document document;
    document.host = "alpha";
    document.settings.slice = nanoseconds(100'000'000);
    document.progress = {"native:exe:unit", "device:lib:launch:wait"};
    document.targets.push_back({"+exe:f", Role::kTarget, {"f"}, 1, {nanoseconds(1000)}, {}});
    document.blocks.emplace_back();
    const auto part = [](double share) { return nanoseconds(static_cast<int64_t>(share * 100e6)); };
    for (int i = 0; i < 5; ++i) {
        Slice slice;
        slice.arm.kind = i == 1 ? ArmKind::kSham : i == 4 ? ArmKind::kDose : ArmKind::kProbe;
        slice.arm.delay = nanoseconds(i == 4 ? 1000 : 0);
        slice.start = nanoseconds(i * 150'000'000);
        slice.length = nanoseconds(100'000'000);
        slice.progress = {100, 400};
        slice.progress_time.assign(2, slice.length);
        slice.latency.resize(2);
        slice.calls = {100};
        DeviceReading device;
        device.launches = 400;
        device.waits = 100;
        device.most_queued = most_queued;
        device.wait = i == 4 ? part(0.9) : part(wait); // what a delay changes does not count
        device.watched = part(1);
        device.idle = part(idle);
        device.busy = part(busy);
        slice.device = {std::nullopt, device};
        document.blocks.back().slices.push_back(slice);
    }
    document.stopped = "blocks";
    document.complete = true;
    return document;
}

} // namespace

TEST(DeviceVerdict, OfADocumentAndItsJson) {
    const Document document = with_device(0.05, 0.6, 0.05);
    const Results results = analyse(document);
    ASSERT_EQ(results.progress.size(), 1u); // no ranking by launches
    ASSERT_EQ(results.devices.size(), 1u);
    const DeviceResult& result = results.devices[0];
    EXPECT_EQ(result.verdict, DeviceVerdict::kHostBound);
    EXPECT_EQ(result.slices, 4u);
    EXPECT_NEAR(result.unit, 1e6, 1);
    EXPECT_NEAR(result.wait, 0.05e6, 1);
    EXPECT_NEAR(result.idle, 0.6e6, 1);
    EXPECT_NEAR(result.unseen, 0.35e6, 1);
    EXPECT_NEAR(result.launches, 4, 1e-9);
    EXPECT_NEAR(result.idling.high, 0.95, 1e-6);

    const auto again = from_json(to_json(document), "it");
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(to_json(*again), to_json(document));
    const auto json = nlohmann::json::parse(to_json(document));
    EXPECT_EQ(json["results"]["devices"][0]["verdict"], "host-bound");
    EXPECT_EQ(json["blocks"][0]["slices"][0]["device"][1]["idle_ns"], 60'000'000);
    EXPECT_TRUE(json["blocks"][0]["slices"][0]["device"][0].is_null());

    const std::string text = speedbump::report::experiment_table(document, results, {});
    EXPECT_THAT(text, HasSubstr("host-bound: a faster device gains 5.0% at most"));
    EXPECT_THAT(text, HasSubstr("can't be seen"));

    auto broken = json;
    broken["blocks"][0]["slices"][0]["device"][1]["wait_ns"] = -1;
    EXPECT_FALSE(from_json(broken.dump(), "it"));
    broken["blocks"][0]["slices"][0]["device"] = nlohmann::json::array({nullptr});
    EXPECT_FALSE(from_json(broken.dump(), "it"));
}

TEST(DeviceVerdict, ADocumentThatIsTakenCanBeShown) {
    const auto json = nlohmann::json::parse(to_json(with_device(0.05, 0.6, 0.05)));
    EXPECT_GT(taken_when_changed(json), 30u);
}

TEST(DeviceVerdict, TimeInWhichNoUnitEndsIsOfTheUnits) {
    Document slow = with_device(0.5, 0.2, 0.5);
    slow.blocks[0].slices[0].progress[0] = 0;
    slow.blocks[0].slices[1].progress[0] = 0;
    const DeviceResult result = examine_devices(slow).at(0);
    EXPECT_EQ(result.slices, 4u);
    EXPECT_NEAR(result.unit, 2e6, 1);
    EXPECT_NEAR(result.wait, 1e6, 1);
    for (Slice& slice : slow.blocks[0].slices) slice.progress[0] = 0;
    EXPECT_EQ(examine_devices(slow).at(0).unit, 0); // not known
}

TEST(DeviceVerdict, SaysWhatCouldNotBeSeen) {
    const auto of = [](const Document& document) { return examine_devices(document).at(0); };
    EXPECT_EQ(of(with_device(0.9, 0.02, 0.95)).verdict, DeviceVerdict::kDeviceBound);
    const DeviceResult uncertain = of(with_device(0.5, 0.05, 0.5));
    EXPECT_EQ(uncertain.verdict, DeviceVerdict::kUncertain);
    EXPECT_THAT(uncertain.notes, testing::Contains(HasSubstr("absorbs the delay")));
    // So much may have been queued that launches had to wait: nobody knows who waits for whom.
    const DeviceResult deep = of(with_device(0.05, 0.0, 0.0, 5000));
    EXPECT_EQ(deep.verdict, DeviceVerdict::kUncertain);
    EXPECT_THAT(deep.notes, testing::Contains(HasSubstr("5000 launches were queued")));
    // Half of that was for a CPU, for all that is known.
    Document crowded = with_device(0.9, 0.02, 0.95);
    for (Slice& slice : crowded.blocks[0].slices) slice.waited = nanoseconds(50'000'000);
    EXPECT_EQ(of(crowded).verdict, DeviceVerdict::kUncertain);
    EXPECT_THAT(of(crowded).notes, testing::Contains(HasSubstr("had no CPU for 0.50 s")));
    Document nobody = with_device(0, 0, 0);
    for (Slice& slice : nobody.blocks[0].slices) slice.device[1]->watched = nanoseconds(0);
    EXPECT_EQ(of(nobody).verdict, DeviceVerdict::kUncertain);
    EXPECT_THAT(of(nobody).notes, testing::Contains(HasSubstr("nobody waited")));
}
