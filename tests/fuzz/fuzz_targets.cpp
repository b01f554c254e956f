// SPDX-License-Identifier: MIT
// Hostile targets files: whatever the bytes, the parser ends, its diagnostics point into the text,
// and what it accepts can be written down and read again.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "mutator.h"
#include "targets/matcher.h"
#include "targets/parser.h"

namespace {

using namespace speedbump;
using namespace speedbump::targets;

std::string_view current_input;

// Also in release builds, unlike assert.
void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "broken: %s\ninput (%zu bytes):\n", what, current_input.size());
    std::fwrite(current_input.data(), 1, current_input.size(), stderr);
    std::abort();
}

std::vector<std::string_view> split_lines(std::string_view text) {
    std::vector<std::string_view> lines;
    while (!text.empty()) {
        const size_t end = std::min(text.find('\n'), text.size());
        lines.push_back(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return lines;
}

std::string quote(const std::string& text) {
    std::string quoted = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') quoted += '\\';
        quoted += c;
    }
    return quoted + '"';
}

std::string write(const TargetLine& line) {
    std::string text = line.exclude ? "!" : "";
    if (line.runtime == Runtime::kNative) text += '+';
    text += quote(line.container.text) + ":" + quote(line.name.text);
    const Options& options = line.options;
    if (options.delay) text += " delay=" + format_duration(*options.delay);
    if (options.every) text += fmt::format(" every={}", *options.every);
    if (options.start) text += " start=" + format_duration(*options.start);
    if (options.duration) text += " duration=" + format_duration(*options.duration);
    if (options.pid) text += fmt::format(" pid={}", *options.pid);
    return text;
}

bool same(const TargetLine& a, const TargetLine& b) {
    return a.runtime == b.runtime && a.exclude == b.exclude &&
           a.container.text == b.container.text && a.container.is_glob == b.container.is_glob &&
           a.name.text == b.name.text && a.name.is_glob == b.name.is_glob &&
           a.file_offset == b.file_offset && a.options.delay == b.options.delay &&
           a.options.every == b.options.every && a.options.start == b.options.start &&
           a.options.duration == b.options.duration && a.options.pid == b.options.pid;
}

void check_line(const TargetLine& line, const std::vector<std::string_view>& lines) {
    require(line.line_number >= 1 && line.line_number <= lines.size(), "line number");
    require(lines[line.line_number - 1].find(line.original) != std::string_view::npos, "original");
    require(!line.container.text.empty() && !line.name.text.empty(), "empty half");
    require(!line.options.delay || *line.options.delay <= kMaxDelay, "delay");
    require(!line.options.every || *line.options.every >= 1, "every");
    require(!line.options.pid || *line.options.pid >= 1, "pid");
    require(matches(line.name, line.name.text), "a pattern matches its own text");

    const std::string text = write(line);
    if (text.size() > kMaxLineBytes) return;
    const ParseOutcome again = parse_targets(text, "t");
    require(again.errors.empty() && again.file.lines.size() == 1, "written line is read");
    require(same(line, again.file.lines[0]), "written line is the same");
}

void test(std::string_view text) {
    current_input = text;
    const ParseOutcome outcome = parse_targets(text, "t");
    const std::vector<std::string_view> lines = split_lines(text);
    size_t last_line = 1;
    for (const Diagnostic& error : outcome.errors) {
        require(error.line >= last_line && error.line <= lines.size(), "line of a diagnostic");
        last_line = error.line;
        const std::string_view line = lines[error.line - 1];
        require(error.column >= 1 && error.column <= line.size() + 1, "column of a diagnostic");
        require(error.length >= 1, "length of a diagnostic");
        require(!error.message.empty() && !error.expectation.empty(), "text of a diagnostic");
        const std::string shown = format_diagnostic("t", error);
        const auto is_control = [](char c) {
            return static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t';
        };
        require(std::none_of(shown.begin(), shown.end(), is_control), "control character shown");
    }
    for (const TargetLine& line : outcome.file.lines) check_line(line, lines);
    if (!lines.empty()) {
        // any bytes as pattern and text
        glob_match(lines.front(), lines.back());
        require(glob_match(std::string(lines.back()) + "*", lines.back()) || has_glob(lines.back()),
                "a text is matched by itself and a star");
    }
}

const std::array<std::string, 6> kSeeds = {
    "mymodule:foo\n*transformers*:Llama*.forward\n# comment\nm:outer.<locals>.inner\n",
    "+/usr/bin/app:main 1000 pid=12\n+/lib/x.so:_ZN2ns1fEi\n",
    "@delay=20us\n@every=4\n+exe:\"ns::f(int, char)\" start=5s duration=30s # why\n!+exe:ns::*\n",
    "+\"/srv/a:b c/\\\"q\\\"\" : \"f g\" delay=1.5ms\n!m:<lambda>\r\n+*/lib[!a-z]?.so*:0x1f0\n",
    "m\xc3\xb6:f\xff delay=10\xc2\xb5s every=0 bogus delay=1 \n:x\ny:\n+a/b:c\n-/x:y\n\"z\n",
    std::string("a:b\0c\n", 6) + std::string(5000, 'x') + "\n@\n@pid=-1\n",
};

constexpr std::array<std::string_view, 30> kDictionary = {
    "delay=", "every=", "start=", "duration=", "pid=", "10us",         "1.5ms", "9999999999s",
    " ",      "\t",     "\n",     "\r\n",      ":",    "::",           "+",     "!",
    "@",      "#",      " #",     "\"",        "\\\"", "\\\\",         "*",     "?",
    "[a-z]",  "[!",     "]",      "0x",        "exe",  "\xef\xbb\xbf",
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    test({reinterpret_cast<const char*>(data), size});
    return 0;
}

#ifndef SPEEDBUMP_LIBFUZZER
int main(int argc, char** argv) {
    return fuzz::run(argc, argv, kSeeds, kDictionary, 20'000, test);
}
#endif
