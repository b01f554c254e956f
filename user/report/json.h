// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/features.h"
#include "report/check.h"
#include "report/summary.h"
#include "session/types.h"
#include "targets/target.h"

// The versioned JSON documents (docs/json.md). Pure functions; each gives one line of text without
// the newline. Bytes that are no UTF-8 become U+FFFD. Times are whole nanoseconds.
namespace speedbump::report {

// Where and how a document was made.
struct Context {
    std::string command; // "attach", "run", "check", ...
    std::string version; // of speedbump
    std::string host;
    std::string kernel;  // release
    std::string machine; // x86_64
    std::string engine;  // "bpf", "kmod", or empty where none is used
};

// The lines of schema speedbump/attach/1, in the order they come: one "matched" before the first
// delay, a "sample" per interval, a "final" at the end. `reason` says why the session ended:
// "interrupted", "duration", "detached", "processes-ended", "program-ended".
std::string attach_matched_json(const Context& context, const session::SessionOptions& options,
                                const Snapshot& snapshot, const TargetsFile& file);
std::string attach_sample_json(const Snapshot& before, const Snapshot& now,
                               const TargetsFile& file);
std::string attach_final_json(const Context& context, const session::SessionOptions& options,
                              const Snapshot& snapshot, const TargetsFile& file,
                              const std::string& reason);

// Schema speedbump/session/1: a live session of the loader `pid` as it stands.
std::string session_json(const Context& context, pid_t pid, const session::SessionOptions& options,
                         const Snapshot& snapshot, const TargetsFile& file);

// A JSON document with all in it escaped that a terminal would not show as a plain character: JSON
// alone leaves what is no control character of ASCII. The same document to who parses it.
std::string shown_json(std::string_view json);

// Schema speedbump/check/1.
std::string check_json(const Context& context, const CheckReport& report, const TargetsFile& file);
// Schema speedbump/list/1.
std::string list_json(const Context& context, const FunctionList& functions);
// Schema speedbump/doctor/1.
std::string doctor_json(const Context& context, const std::vector<engine::Check>& checks);
// Schema speedbump/calibrate/1.
std::string calibrate_json(const Context& context, const std::vector<engine::CalibrationRow>& rows);

} // namespace speedbump::report
