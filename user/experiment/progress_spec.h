// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include "targets/target.h"
#include "util/result.h"

namespace speedbump::experiment {

// What --progress names: where units of work can be counted.
struct ProgressSpec {
    enum class Kind {
        kNative,  // BINARY, SYMBOL: calls
        kPython,  // MODULE, NAME: calls
        kLatency, // BINARY, SYMBOL: calls, and the time from entry to return
        kUsdt,    // BINARY, PROVIDER, NAME
        kSyscall, // NAME: calls by the processes
        kCommand, // CMD: prints a running total
        kFile,    // PATH, REGEX: matching lines, or the running total that they tell
        kHttp,    // URL, REGEX: a running total on a page
        kDevice,  // what parse_device() takes: launches, and who waits for whom
    } kind = Kind::kNative;
    std::string text; // as given
    std::string first, second, third;
};

// kUsage, with what would be right, for a text that names none.
Result<ProgressSpec> parse_progress(const std::string& text);

// The targets file line that names the functions of a kNative, kPython or kLatency point.
Result<targets::TargetLine> line_of(const ProgressSpec& spec);

// The line for a native function of that name in that binary; kUsage where they make none.
Result<targets::TargetLine> native_line(const std::string& binary, const std::string& name);

// Whether its units can be counted by slices of a schedule; those that are asked for can't.
bool is_told_by_slice(const ProgressSpec& spec);

// The middle of a bucket of bpf/progress.bpf.c's latencies, in ns.
uint64_t latency_of_bucket(uint32_t bucket);

} // namespace speedbump::experiment
