// SPDX-License-Identifier: MIT
// What a process that is not trusted sends.
#include "engine/python/python_packets.h"

#include <gtest/gtest.h>

#include <string>

namespace speedbump::engine {
namespace {

std::string quoted(size_t size) {
    return "\"" + std::string(size, 'w') + "\"";
}

TEST(PythonPackets, WarningsAreShownInBoundedNumberAndLength) {
    std::string packet = R"({"op":"ready","warnings":["short")";
    for (int i = 0; i < 50; ++i) packet += "," + quoted(kMaxTold + 1);
    const PythonPacket read = read_packet(7, packet + "]}");
    ASSERT_EQ(read.warnings.size(), kMaxWarnings);
    EXPECT_EQ(read.warnings_left_out, 51 - kMaxWarnings);
    EXPECT_EQ(read.warnings[0], "short");
    EXPECT_EQ(read.warnings[1], std::string(kMaxTold - 3, 'w') + "...");
}

TEST(PythonPackets, TextsAsLongAsTheBoundAreWhole) {
    const PythonPacket read =
        read_packet(7, R"({"op":"ready","warnings":[)" + quoted(kMaxTold) + "]}");
    ASSERT_EQ(read.warnings.size(), 1u);
    EXPECT_EQ(read.warnings[0].size(), kMaxTold);
    EXPECT_EQ(read.warnings_left_out, 0u);
}

// 37 times the memory of their text.
TEST(PythonPackets, WhatTakesMoreMemoryThanItsTextIsBounded) {
    std::string matches = "{}";
    std::string modules = "1";
    while (matches.size() < 60000) matches += ",{}";
    while (modules.size() < 60000) modules += ",1";
    PythonPacket read = read_packet(7, R"({"op":"matched","matched":[)" + matches + "]}");
    EXPECT_EQ(read.matches.size(), kMaxMatches);
    read = read_packet(7, R"({"op":"looked","modules":[)" + modules + "]}");
    EXPECT_EQ(read.modules.size(), kMaxModules);
}

TEST(PythonPackets, AReasonIsCut) {
    const PythonPacket read = read_packet(7, R"({"op":"error","message":)" + quoted(60000) + "}");
    EXPECT_EQ(read.reason.size(), kMaxTold);
}

TEST(PythonPackets, AnAnswerToGroupsHasANumberAndABoundedTime) {
    PythonPacket read = read_packet(1, R"({"op":"grouped","number":7,"held_ns":1500})");
    EXPECT_EQ(read.op, "grouped");
    EXPECT_EQ(read.number, 7u);
    EXPECT_EQ(read.held, std::chrono::nanoseconds(1500));
    EXPECT_TRUE(read.reason.empty());
    read = read_packet(1, R"({"op":"grouped","number":-7,"held_ns":18446744073709551615})");
    EXPECT_EQ(read.number, 0u);
    EXPECT_EQ(read.held, kMaxHookOverhead);
    EXPECT_FALSE(read_packet(1, R"({"op":"grouped"})").number);
}

} // namespace
} // namespace speedbump::engine
