// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "targets/target.h"

namespace speedbump::targets {

// Whether the text holds a glob character: `*`, `?`, or a `[` with its `]`.
bool has_glob(std::string_view text);

// Whether `text` matches the shell glob `pattern` (case-sensitive; * ? [abc] [!abc] [a-z]; * and ?
// cross every character; an unclosed [ is a literal). A character is one of UTF-8, or a byte that
// is none. Takes at most time in the product of the lengths.
bool glob_match(std::string_view pattern, std::string_view text);

// Whether the half-line pattern matches: exactly (also `operator[](int)`), or as a glob.
bool matches(const Pattern& pattern, std::string_view text);

// What is known of a mapped file when BINARY is matched against it.
struct BinaryIdentity {
    std::string path;   // as the process sees it, without " (deleted)"
    std::string soname; // DT_SONAME, or empty
    bool is_main_executable = false;
};

// Whether BINARY of a native line names this file: absolute path or path glob against the path;
// a pattern without '/' against the file name and the soname; "exe" the main executable.
bool binary_matches(const Pattern& binary, const BinaryIdentity& identity);

// The names of one native function: every alias with, for each, mangled, demangled with signature,
// demangled without it. `file_offset` is that of its entry.
struct FunctionNames {
    std::vector<std::string_view> names;
    uint64_t file_offset = 0;
};

// Whether SYMBOL of a native line names this function.
bool symbol_matches(const TargetLine& line, const FunctionNames& function);

// Whether a Python line names the function. MODULE is tried against module name and file path;
// an absent module_name or file_path is passed as an empty view.
bool python_matches(const TargetLine& line, std::string_view module_name,
                    std::string_view file_path, std::string_view qualified_name);

// The line that decides for a Python function (the last match), or nullptr when no line matches or
// the deciding line is an exclusion.
const TargetLine* decide_python(const TargetsFile& file, std::string_view module_name,
                                std::string_view file_path, std::string_view qualified_name);

// decide_python() over thousands of lines: they are found by what they say without a glob, so that
// only lines that begin as the function's names do take time for it.
class PythonLines {
  public:
    PythonLines() = default;
    explicit PythonLines(std::vector<TargetLine> lines);

    const std::vector<TargetLine>& lines() const { return lines_; }
    // The index of the line that decides, also where that is an exclusion; nothing when no line
    // matches.
    std::optional<size_t> decide(std::string_view module_name, std::string_view file_path,
                                 std::string_view qualified_name) const;

  private:
    // Lines that have as long a part without a glob in front of each half (npos: it has no glob),
    // by these parts.
    struct Shape {
        size_t container = 0;
        size_t name = 0;
        size_t last = 0;                                              // of its lines
        std::unordered_map<std::string, std::vector<size_t>> lines{}; // of lines_, ascending
    };

    std::vector<TargetLine> lines_;
    std::vector<Shape> shapes_; // whose last line comes last first
};

} // namespace speedbump::targets
