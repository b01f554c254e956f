// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace speedbump::engine {

// What the core in a process says in one packet (pyext/src/serve.h).
struct PythonPacket {
    std::string op;
    std::string reason; // of "refused", "error", "grouped" and "gone", cut to kMaxTold bytes
    std::vector<PythonMatch> matches;  // of "ready", "matched" and "functions"; at most kMaxMatches
    std::vector<std::string> warnings; // at most kMaxWarnings, each cut to kMaxTold bytes
    size_t warnings_left_out = 0;
    std::chrono::nanoseconds hook_overhead{0}; // at most kMaxHookOverhead
    std::optional<uint64_t> number;            // of "grouped"
    std::chrono::nanoseconds held{0};          // of "grouped", at most kMaxHookOverhead
    bool inherited = false;
    bool from_start = false;
    std::vector<uint64_t> modules; // of "looked"; at most kMaxModules
    bool more = false;             // of "looked"
};

inline constexpr std::chrono::nanoseconds kMaxHookOverhead = std::chrono::seconds(1);
inline constexpr size_t kMaxWarnings = 16;
inline constexpr size_t kMaxTold = 1024;
// More than our cores send in one packet (pyext/src/serve.cpp): empty entries take 37 times the
// memory of their text.
inline constexpr size_t kMaxMatches = 256;
inline constexpr size_t kMaxModules = 4096;

// One packet; empty when none waits or the other end is gone.
std::optional<std::string> receive(int channel);

// Reads a packet of a process that is not ours: whatever the bytes, what is not there, or of
// another type than it should be, is as empty as it is in a PythonPacket.
PythonPacket read_packet(pid_t process, std::string_view packet);

} // namespace speedbump::engine
