// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/features.h"
#include "process/resolver.h"
#include "report/table.h"
#include "targets/target.h"

// What `check`, `list`, `doctor` and `calibrate` print. Pure functions.
namespace speedbump::report {

// What `check` found out.
struct CheckReport {
    std::vector<std::string> places; // "process 12 (redis-server)", "file /usr/bin/true"; empty:
                                     // only what the lines name by absolute path was looked at
    std::vector<process::NativeMatch> matches;
    std::vector<process::Skipped> skipped;
    std::vector<size_t> unmatched_lines; // indexes into TargetsFile::lines
};

enum class LineState {
    kMatched,     // at least one function
    kRefused,     // matches functions, none of which can be probed: see `skipped`
    kUnmatched,   // everything it could match was looked at: nothing
    kNotLookedAt, // needs --pid or --exe
    kPython,      // decided when an interpreter runs the function
    kExclusion,
};
// One element per line of the file.
std::vector<LineState> line_states(const CheckReport& report, const targets::TargetsFile& file);
// Whether no line gives anything to slow although every line was looked at.
bool nothing_matched(const CheckReport& report, const targets::TargetsFile& file);

// A section per line of the targets file with what it matches; `verbose` adds for each function
// the probe site and the reason for it.
std::string check_text(const CheckReport& report, const targets::TargetsFile& file,
                       const Style& style, bool verbose);

// One function that a targets line could name.
struct ListedFunction {
    std::string path;
    std::string name;         // as the symbol table has it
    std::string demangled;    // with signature, or empty
    uint64_t file_offset = 0; // of the entry
    uint64_t size = 0;        // bytes, 0: unknown
    bool is_ifunc = false;
    std::string refusal; // why it can't be probed, or empty
};
// What `list` found.
struct FunctionList {
    std::vector<ListedFunction> native;
    std::vector<engine::PythonMatch> python; // each name of a file once
};
// One targets line per name, which may be that of several functions of a file; quoted where the
// grammar needs it, ready to be pasted. What no line can name is counted in a comment.
std::string list_text(const FunctionList& functions);
// The targets line that names exactly this function, shown by a terminal as it is; "" where a line
// can't hold its name.
std::string targets_line(const ListedFunction& function);
std::string targets_line(const engine::PythonMatch& function);
// The targets line for the Python functions of this name in this file. A name that isn't qualified
// (CPython 3.10) stands for all functions and methods that end in it.
std::string python_targets_line(const std::string& file, const std::string& name,
                                bool is_qualified);

// The table of `doctor`: state, name, detail, and below it the line to paste.
std::string doctor_text(const std::vector<engine::Check>& checks, const Style& style);

// The table of `calibrate`.
std::string calibrate_text(const std::vector<engine::CalibrationRow>& rows, const Style& style);

} // namespace speedbump::report
