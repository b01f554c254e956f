// SPDX-License-Identifier: MIT
#include "fleet/protocol.h"

#include <gtest/gtest.h>

#include "fleet/lines.h"

namespace speedbump::fleet {
namespace {

using namespace std::chrono_literals;

constexpr Shape kShape{1, 2};

template <typename Message>
Message again(const Order& order, size_t targets = 2) {
    const std::string line = line_of(order);
    EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
    const auto read = read_order(line, targets);
    EXPECT_TRUE(read) << read.error().message;
    return std::get<Message>(*read);
}
template <typename Message>
Message again(const Report& report) {
    const std::string line = line_of(report);
    EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
    const auto read = read_report(line, kShape);
    EXPECT_TRUE(read) << read.error().message;
    return std::get<Message>(*read);
}

TEST(FleetProtocol, OrdersArriveAsTheyWereSent) {
    Attach attach;
    attach.lines = {"+exe:f delay=5us", "-exe:\"g\""};
    attach.positive = {1};
    attach.progress = {"native:exe:step"};
    attach.pids = {12, 13};
    attach.exe = "server";
    attach.max_cpu = 1.5;
    const auto read = again<Attach>(attach);
    EXPECT_EQ(read.lines, attach.lines);
    EXPECT_EQ(read.positive, attach.positive);
    EXPECT_EQ(read.pids, attach.pids);
    EXPECT_EQ(read.exe, attach.exe);
    EXPECT_EQ(read.cgroup, std::nullopt);
    EXPECT_EQ(read.max_cpu, 1.5);
    EXPECT_EQ(again<Ping>(Ping{7}).id, 7u);
    const auto begin = again<Begin>(Begin{3, 4096, 77, 10ms, 5us});
    EXPECT_EQ(begin.first, 4096u);
    EXPECT_EQ(begin.slice, 10ms);
    EXPECT_EQ(begin.period, 5us);
    const auto rows = again<Rows>(Rows{3, 9, {{0ns, 5us}, {1us, 0ns}}});
    EXPECT_EQ(rows.doses, (std::vector<std::vector<nanoseconds>>{{0ns, 5us}, {1us, 0ns}}));
    again<End>(End{});
}

TEST(FleetProtocol, ReportsArriveAsTheyWereSent) {
    EXPECT_EQ(again<Hello>(Hello{1, "1.0", "node1", "6.1", "a CPU"}).host, "node1");
    const auto attached =
        again<Attached>(Attached{{{"+exe:f", {"exe:f"}, 1, 900ns, true, {"a note"}}}});
    ASSERT_EQ(attached.targets.size(), 1u);
    EXPECT_EQ(attached.targets[0].least, 900ns);
    EXPECT_TRUE(attached.targets[0].is_positive);
    SliceReading slice;
    slice.points = {{4, 5000}};
    slice.targets = {{3, 2, 1000}, {0, 0, 0}};
    const auto taken = again<Taken>(Taken{1, 2, 3, {slice, slice}});
    ASSERT_EQ(taken.slices.size(), 2u);
    EXPECT_EQ(taken.slices[1].points[0].units, 4u);
    EXPECT_EQ(taken.slices[1].points[0].since_ns, 5000u);
    EXPECT_EQ(taken.slices[1].targets[0].injected_ns, 1000u);
    slice.points = {{~0ull, 1ull << 45}}; // many units' times, together
    const auto large = again<Taken>(Taken{1, 2, 3, {slice}});
    EXPECT_EQ(large.slices[0].points[0].units, 1ull << 40);
    EXPECT_EQ(large.slices[0].points[0].since_ns, 1ull << 45);
    slice.points = {{1, ~0ull}};
    EXPECT_EQ(again<Taken>(Taken{1, 2, 3, {slice}}).slices[0].points[0].since_ns, 1ull << 50);
    EXPECT_EQ(again<Late>(Late{1, 5, 6}).count, 6u);
    EXPECT_EQ(again<Tripped>(Tripped{1, "too slow"}).why, "too slow");
    const auto failed =
        again<Failed>(Failed{make_error(ErrorKind::kPermission, "no").with_hint("be root")});
    EXPECT_EQ(failed.error.kind, ErrorKind::kPermission);
    EXPECT_EQ(failed.error.hint, "be root");
}

// A slice of an agent without a progress point or a target.
TEST(FleetProtocol, SlicesMayBeEmpty) {
    const auto read = read_report(line_of(Report(Taken{1, 2, 3, {SliceReading()}})), {0, 0});
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(std::get<Taken>(*read).slices.size(), 1u);
}

TEST(FleetProtocol, WhatIsDamagedIsRefused) {
    for (const char* line :
         {"", "Welcome to node1", "{", "[]", "7", "{}", R"({"type":7})", R"({"type":"rows"})",
          R"({"type":"ping","id":-1})", R"({"type":"ping","id":1.5})",
          R"({"type":"ping","id":18446744073709551615})",
          R"({"type":"rows","epoch":1,"first":0,"doses":[[1]]})",
          R"({"type":"rows","epoch":1,"first":0,"doses":[[1,10000000001]]})",
          R"({"type":"rows","epoch":1,"first":0,"doses":{"a":[1,2]}})",
          R"({"type":"begin","epoch":1,"first":0,"start_ns":1,"slice_ns":0,"period_ns":0})",
          R"({"type":"begin","epoch":1,"first":0,"start_ns":1,"slice_ns":60000000,"period_ns":0})",
          R"({"type":"attach","lines":[],"positive":[0],"progress":[],"whole_python":false,)"
          R"("whole_native":false,"pids":[],"follow_children":true,"max_slowdown":1,"max_cpu":1})",
          R"({"type":"rm -rf"})"}) {
        const auto read = read_order(line, 2);
        ASSERT_FALSE(read) << line;
        EXPECT_EQ(read.error().kind, ErrorKind::kInvalid);
    }
    for (const char* line :
         {"motd", R"({"type":"pong","id":1,"now_ns":1e30})",
          R"({"type":"taken","epoch":1,"first":0,"began_ns":1,"slices":[[1,2,3,4,5,6,7]]})",
          R"({"type":"taken","epoch":1,"first":0,"began_ns":1,"slices":[[1,2,3,4,5,6,7,8,9]]})",
          R"({"type":"taken","epoch":1,"first":0,"began_ns":1,"slices":[[1,2,3,4,5,6,7,-8]]})",
          R"({"type":"taken","epoch":1,"first":0,"began_ns":1,"slices":[[1,2,3,4,5,6,7,1e300]]})",
          R"({"type":"attached","targets":[{"name":"f"}]})"}) {
        const auto read = read_report(line, kShape);
        EXPECT_FALSE(read) << line;
    }
}

TEST(FleetProtocol, TextsOfAHostCanBePrinted) {
    const auto warning = again<Warning>(Warning{"\x1b[31mred\nline"});
    EXPECT_EQ(warning.text, "\\x1b[31mred\\x0aline");
    EXPECT_LE(again<Warning>(Warning{std::string(1 << 20, 'x')}).text.size(), 4096u);
    EXPECT_FALSE(
        read_report(R"({"type":"warning","text":")" + std::string(5000, 'x') + "\"}", kShape));
}

TEST(FleetLines, ComeInPieces) {
    LineBuffer lines(10);
    lines.add("one\ntw");
    EXPECT_EQ(lines.next(), "one");
    EXPECT_EQ(lines.next(), std::nullopt);
    lines.add("o\n\nthree");
    EXPECT_EQ(lines.next(), "two");
    EXPECT_EQ(lines.next(), "");
    EXPECT_EQ(lines.next(), std::nullopt);
    EXPECT_FALSE(lines.is_broken());
}

TEST(FleetLines, EndWithOneThatIsTooLong) {
    LineBuffer lines(10);
    lines.add("good\n" + std::string(11, 'x'));
    EXPECT_EQ(lines.next(), "good");
    EXPECT_TRUE(lines.is_broken());
    lines.add("\nlater\n");
    EXPECT_EQ(lines.next(), std::nullopt);
}

} // namespace
} // namespace speedbump::fleet
