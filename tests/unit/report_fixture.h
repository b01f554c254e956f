// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "report/summary.h"
#include "targets/parser.h"

namespace speedbump::report::testing {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

inline constexpr const char* kTargets =
    "@delay=20us\n"
    "+exe:processCommand\n"
    "+libssl.so*:SSL_* delay=1.5ms every=3 start=1s duration=30s # slow\n"
    "app.views:render\n"
    "+libmissing.so:nothing\n"
    "!+libssl.so*:SSL_free\n";

inline TargetsFile sample_file() {
    targets::ParseOutcome outcome = targets::parse_targets(kTargets, "targets.txt");
    EXPECT_TRUE(outcome.errors.empty());
    return std::move(outcome.file);
}

inline session::Target native_target(size_t line_index, std::string container, std::string name,
                                     uint64_t entry, uint64_t site, elf::SiteKind kind,
                                     std::string instruction, nanoseconds delay) {
    session::Target target;
    target.line_index = line_index;
    target.container = std::move(container);
    target.name = std::move(name);
    target.entry_offset = entry;
    target.site.file_offset = site;
    target.site.kind = kind;
    target.site.instruction = std::move(instruction);
    target.site.reason = "the first instruction would be single-stepped";
    target.settings.delay = delay;
    return target;
}

// Three targets, two living processes and a dead one, 10 s after arming.
inline Snapshot sample_snapshot() {
    Snapshot snapshot;
    snapshot.taken_at = std::chrono::system_clock::time_point(seconds(1'700'000'000));
    snapshot.since_armed = seconds(10);
    snapshot.armed = true;
    snapshot.targets.push_back(native_target(0, "/usr/bin/redis-server", "processCommand", 0x8a120,
                                             0x8a122, elf::SiteKind::kEmulated, "push %r14",
                                             microseconds(20)));
    snapshot.targets.push_back(native_target(1, "/usr/lib/libssl.so.3", "SSL_read", 0x1000, 0x1000,
                                             elf::SiteKind::kSingleStep, "endbr64",
                                             microseconds(1500)));
    snapshot.targets[1].settings.every = 3;
    snapshot.targets[1].settings.start = seconds(1);
    snapshot.targets[1].settings.duration = seconds(30);
    session::Target python;
    python.runtime = targets::Runtime::kPython;
    python.line_index = 2;
    python.container = "app.views";
    python.name = "render";
    python.settings.delay = microseconds(20);
    python.below_floor = true;
    snapshot.targets.push_back(python);
    snapshot.processes = {
        {100, "redis-server", true}, {101, "evil\x1b[2J", true}, {102, "x", false}};
    snapshot.counts = {{0, 100, 51'500, 51'500, milliseconds(1030), milliseconds(1036)},
                       {0, 101, 500, 500, milliseconds(10), milliseconds(10)},
                       {1, 100, 9, 3, microseconds(4500), microseconds(4512)}};
    snapshot.skipped.push_back({"/usr/lib/libc.so.6", "memcpy", 1, "an IFUNC nobody resolved yet"});
    snapshot.unmatched_lines = {3};
    snapshot.late_files = {"/usr/lib/libc.so.6"};
    return snapshot;
}

// The snapshot a second earlier.
inline Snapshot earlier_snapshot() {
    Snapshot snapshot = sample_snapshot();
    snapshot.since_armed = seconds(9);
    snapshot.counts = {{0, 100, 1'500, 1'500, milliseconds(30), milliseconds(36)},
                       {0, 101, 500, 500, milliseconds(10), milliseconds(10)}};
    return snapshot;
}

// Compares with tests/unit/golden/NAME; SPEEDBUMP_UPDATE_GOLDEN=1 writes the file instead.
inline void expect_golden(const std::string& name, const std::string& text) {
    const std::string path = std::string(SPEEDBUMP_SOURCE_DIR "/tests/unit/golden/") + name;
    if (std::getenv("SPEEDBUMP_UPDATE_GOLDEN") != nullptr) {
        std::ofstream(path) << text;
        return;
    }
    std::ifstream file(path);
    ASSERT_TRUE(file.is_open()) << path;
    std::stringstream expected;
    expected << file.rdbuf();
    EXPECT_EQ(text, expected.str()) << "SPEEDBUMP_UPDATE_GOLDEN=1 accepts the new text";
}

} // namespace speedbump::report::testing
