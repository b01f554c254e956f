// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "targets/target.h"
#include "util/result.h"

// The language that live sessions are talked to in (docs/control.md). Pure functions.
namespace speedbump::control {

// A request is one line of at most this many bytes.
inline constexpr size_t kMaxControlLine = 16u << 10;
inline constexpr const char* kControlSchema = "speedbump/control/1";

enum class ControlAction { kStatus, kSet, kPause, kResume, kDetach };

struct ControlRequest {
    ControlAction action = ControlAction::kStatus;
    std::string pattern;     // kSet: which targets, as Session::set takes it
    targets::Options change; // kSet: at least one of delay, every, start, duration
};

// "status", "set", "pause", "resume", "detach".
std::string_view control_action_name(ControlAction action);

// Parses a line without its newline: "pause", or "set PATTERN delay=20us every=3". PATTERN ends at
// white space unless it is in double quotes, where \" and \\ are the escapes. kUsage says what
// would be right.
Result<ControlRequest> parse_control_request(std::string_view line);

// The line, with its newline, that asks for `settings` ("delay=20us") of `pattern`. kUsage when it
// would not be a good request.
Result<std::string> format_set_request(const std::string& pattern,
                                       const std::vector<std::string>& settings);

// The answer to a request that was done, as one line with its newline. `members` is empty, or
// further members of the JSON object, each with a comma before it.
std::string format_control_answer(ControlAction action, const std::string& members);
// The answer to one that was not.
std::string format_control_refusal(const Error& error);

// The Error that an answer tells of, or its text as it is. kInvalid for what is no answer.
Result<std::string> read_control_answer(std::string answer);

} // namespace speedbump::control
