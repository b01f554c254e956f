// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "targets/target.h"
#include "util/result.h"

namespace speedbump::targets {

// One problem in a targets file. `line` and `column` count from 1; column is in bytes of the line.
struct Diagnostic {
    size_t line = 0;
    size_t column = 0;
    size_t length = 1;       // bytes to underline, at least 1
    std::string message;     // what is wrong
    std::string expectation; // what would be right
    std::string source_line; // the line as it stands in the file
};

struct ParseOutcome {
    TargetsFile file;
    std::vector<Diagnostic> errors; // empty: the file is good
};

// Parses the text of a targets file. `path` is only used in messages. Never fails as a whole: all
// errors of the text are collected.
ParseOutcome parse_targets(std::string_view text, std::string path);

// Opens, checks (regular file, at most kMaxFileBytes) and parses the file at `path`; a fifo or a
// device is refused without waiting for it. The error of a file with bad lines is of kind
// kTargetsFile and its message is format_diagnostics() of all of them.
Result<TargetsFile> load_targets(const std::string& path);

// One diagnostic as "FILE:LINE:COL: error: MESSAGE", the source line, a caret line, the
// expectation.
std::string format_diagnostic(const std::string& path, const Diagnostic& diagnostic);
std::string format_diagnostics(const std::string& path, const std::vector<Diagnostic>& diagnostics);

// "10us", "2.5 ms" is not allowed, "1000" (nanoseconds). Error text says what would be right.
Result<nanoseconds> parse_duration(std::string_view text);
// The shortest exact form: 10us, 1.5ms, 250ns, 0ns.
std::string format_duration(nanoseconds duration);

} // namespace speedbump::targets
