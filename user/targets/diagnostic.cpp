// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>

#include "targets/parser.h"
#include "util/text.h"

namespace speedbump::targets {

namespace {

constexpr size_t kBytesBeforeCaret = 100;
constexpr size_t kBytesAfterCaret = 120;
constexpr std::string_view kIndent = "    ";
constexpr std::string_view kCut = "...";

bool continues_character(char byte) {
    return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
}

size_t to_character_start(std::string_view text, size_t at) {
    for (int step = 0; step < 3 && at < text.size() && continues_character(text[at]); ++step) ++at;
    return at;
}

} // namespace

std::string format_diagnostic(const std::string& path, const Diagnostic& diagnostic) {
    std::string text = fmt::format("{}:{}:{}: error: {}\n", path, diagnostic.line,
                                   diagnostic.column, diagnostic.message);
    const std::string_view line = diagnostic.source_line;
    const size_t marked = std::min(diagnostic.column - 1, line.size());
    const size_t marked_end = std::min(marked + diagnostic.length, line.size());
    size_t begin = 0;
    if (marked > kBytesBeforeCaret) begin = to_character_start(line, marked - kBytesBeforeCaret);
    size_t end = line.size();
    if (end - marked > kBytesAfterCaret) end = to_character_start(line, marked + kBytesAfterCaret);

    std::string source(kIndent);
    std::string caret(kIndent);
    if (begin > 0) {
        source += kCut;
        caret.append(kCut.size(), ' ');
    }
    size_t underlined = 0;
    for (size_t at = begin; at < end;) {
        const Character character = decode_character(line, at);
        const bool is_tab = character.code == '\t';
        const std::string_view bytes = line.substr(at, character.bytes);
        source += is_tab ? std::string(bytes) : printable(bytes);
        if (at < marked) {
            // a tab in both lines keeps them aligned whatever the terminal's tab stops are
            caret.append(is_tab ? 1 : printed_columns(character), is_tab ? '\t' : ' ');
        } else if (at < marked_end) {
            underlined += is_tab ? 1 : printed_columns(character);
        }
        at += character.bytes;
    }
    if (end < line.size()) source += kCut;
    caret += '^';
    if (underlined > 1) caret.append(underlined - 1, '~');
    text += source + "\n" + caret + "\n";
    if (!diagnostic.expectation.empty()) {
        text += fmt::format("{}expected: {}\n", kIndent, diagnostic.expectation);
    }
    return text;
}

std::string format_diagnostics(const std::string& path,
                               const std::vector<Diagnostic>& diagnostics) {
    std::string text;
    for (const Diagnostic& diagnostic : diagnostics) text += format_diagnostic(path, diagnostic);
    return text;
}

} // namespace speedbump::targets
