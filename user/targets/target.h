// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sb_common.h"

namespace speedbump::targets {

using std::chrono::nanoseconds;

inline constexpr nanoseconds kMaxDelay{SB_MAX_DELAY_NS};
inline constexpr nanoseconds kDefaultDelay = std::chrono::microseconds(1);
inline constexpr size_t kMaxLineBytes = 4096;
inline constexpr size_t kMaxThreadPattern = 55; // names have at most 15
inline constexpr size_t kMaxFileBytes = 16u << 20;

// What a delay does with the CPU: keeps it, or gives it up until shortly before the end.
enum class Mode { kSpin, kSleep };

// One half of a line, or an option's value. `text` is unquoted and unescaped; `is_glob` false means
// exact match.
struct Pattern {
    std::string text;
    bool is_glob = false;
};

// The options of one line; an empty one was given neither on the line nor by an @default above it.
struct Options {
    std::optional<nanoseconds> delay;    // 0 to kMaxDelay
    std::optional<uint64_t> every;       // 1 and up
    std::optional<nanoseconds> start;    // after arming
    std::optional<nanoseconds> duration; // after start; 0: without end
    std::optional<pid_t> pid;            // only this process and its descendants
    std::optional<Mode> mode;
    std::optional<Pattern> caller; // only calls that such a function makes
    std::optional<Pattern> thread; // only on threads of such a name, of kMaxThreadPattern bytes
};

enum class Runtime { kPython, kNative };

// One target or exclusion line. `container` is MODULE or BINARY, `name` is NAME or SYMBOL.
struct TargetLine {
    Runtime runtime = Runtime::kPython;
    bool exclude = false;
    Pattern container;
    Pattern name;
    std::optional<uint64_t> file_offset; // native SYMBOL written as 0x1234
    Options options;                     // with the @defaults above the line folded in
    size_t line_number = 0;              // from 1
    std::string original;                // the line without surrounding white space and comment
};

// The lines of one file in order; the last line that matches a function decides.
struct TargetsFile {
    std::string path; // as the user named it; used in messages
    std::vector<TargetLine> lines;
};

} // namespace speedbump::targets
