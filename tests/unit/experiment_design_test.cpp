// SPDX-License-Identifier: MIT
#include "experiment/design.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "targets/parser.h"

using namespace speedbump::experiment;
using namespace std::chrono_literals;
using speedbump::ErrorKind;
using testing::HasSubstr;

namespace {

Request asking(const std::vector<std::string>& progress) {
    Request request;
    request.file =
        speedbump::targets::parse_targets("+exe:f\n!+exe:f2\napp:g\n", "targets.txt").file;
    for (const std::string& text : progress)
        request.progress.push_back(std::move(parse_progress(text)).value());
    return request;
}

} // namespace

TEST(Design, MeasuresAllAtOnceWhereNothingElseIsAskedFor) {
    const auto design = design_of(asking({"native:exe:unit", "python:app:h"}));
    ASSERT_TRUE(design);
    EXPECT_TRUE(design->at_once);
    EXPECT_EQ(design->columns, 3u); // two lines, and calls that interpreters count
    EXPECT_EQ(design->why, "");
}

TEST(Design, CountsAColumnForEachProgressThatHooksCount) {
    Request request = asking({"native:exe:unit", "python:app:h"});
    request.session.engine = speedbump::session::EngineChoice::kInprocess;
    EXPECT_EQ(design_of(request)->columns, 4u);
}

TEST(Design, WhatIsAskedForMayTakeLongSlices) {
    const auto is_at_once = [](const std::function<void(Request&)>& ask) {
        Request request = asking({"native:exe:unit"});
        ask(request);
        const auto design = design_of(request);
        EXPECT_EQ(design->columns > 0, design->at_once);
        EXPECT_EQ(design->why, ""); // it was asked for
        return design->at_once;
    };
    EXPECT_FALSE(is_at_once([](Request& request) { request.bisect = true; }));
    EXPECT_FALSE(is_at_once([](Request& request) { request.blocks = 4; }));
    EXPECT_FALSE(is_at_once([](Request& request) { request.doses = {5us, 10us}; }));
    EXPECT_FALSE(is_at_once([](Request& request) { request.settle = 10ms; }));
    EXPECT_FALSE(is_at_once([](Request& request) { request.slice = 51ms; }));
    EXPECT_TRUE(is_at_once([](Request& request) { request.slice = 50ms; }));
    EXPECT_TRUE(is_at_once([](Request& request) {
        request.slice = 5ms;
        request.doses = {5us};
        request.settle = 10ms;
    }));
}

TEST(Design, ProgressThatShortSlicesDoNotTellIsSaid) {
    for (const char* progress : {"command:echo 1", "file:/log:unit", "http:http://localhost/:x",
                                 "latency:exe:handle", "device:cuda"}) {
        const auto design = design_of(asking({"native:exe:unit", progress}));
        ASSERT_TRUE(design) << progress;
        EXPECT_FALSE(design->at_once) << progress;
        EXPECT_EQ(design->columns, 0u);
        EXPECT_THAT(design->why, HasSubstr(progress));
    }
}

TEST(Design, ShortSlicesThatAreAskedForAndCannotBeAreRefused) {
    Request request = asking({"command:echo 1"});
    request.slice = 5ms;
    ASSERT_FALSE(design_of(request));
    EXPECT_EQ(design_of(request).error().kind, ErrorKind::kUsage);
    request = asking({"native:exe:unit"});
    request.slice = 999us;
    EXPECT_FALSE(design_of(request));
    request.slice = 5ms;
    request.blocks = 3;
    EXPECT_FALSE(design_of(request));
}

TEST(Design, SlicesHoldTenUnits) {
    EXPECT_EQ(slice_length(12e3), 4ms); // the shortest
    EXPECT_EQ(slice_length(1e6), 10ms);
    EXPECT_EQ(slice_length(1.01e6), 11ms);
    EXPECT_EQ(slice_length(9e6), 50ms);
    EXPECT_TRUE(fits_short_slices(25e6));
    EXPECT_FALSE(fits_short_slices(26e6));
}

TEST(Design, SlicesAreEnoughInTheTimeThereIs) {
    EXPECT_EQ(slice_length(3e6, 60s), 30ms);
    EXPECT_EQ(slice_length(3e6, 20s), 13ms);
    EXPECT_EQ(slice_length(3e6, 1s), 4ms);
    EXPECT_EQ(slice_length(12e3, 10h), 4ms);
    EXPECT_TRUE(fits_short_slices(10e6, 30s));
    EXPECT_FALSE(fits_short_slices(10e6, 29s));
    EXPECT_TRUE(fits_short_slices(1e6, 2s));
}
