// SPDX-License-Identifier: MIT
#include "report/table.h"

#include <fmt/format.h>

#include <algorithm>

#include "util/text.h"

namespace speedbump::report {

std::string show_share(double share) {
    return fmt::format("{:.1f}%", share * 100);
}

size_t display_width(std::string_view text) {
    size_t width = 0;
    bool in_escape = false;
    for (size_t at = 0; at < text.size();) {
        const Character character = decode_character(text, at);
        if (character.code == 0x1b) in_escape = true;
        if (!in_escape) width += printed_columns(character);
        if (character.code == 'm') in_escape = false;
        at += character.bytes;
    }
    return width;
}

std::string shorten(const std::string& text, size_t width) {
    const size_t columns = display_width(text);
    if (columns <= width) return text;
    const std::string gap = "...";
    const size_t kept = width > gap.size() ? width - gap.size() : 0;
    const size_t head = kept / 2;
    std::string front;
    std::string back;
    size_t before = 0; // columns left of the character
    for (size_t at = 0; at < text.size();) {
        const Character character = decode_character(text, at);
        const size_t after = before + printed_columns(character);
        if (after <= head) front += text.substr(at, character.bytes);
        if (before >= columns - (kept - head)) back += text.substr(at, character.bytes);
        before = after;
        at += character.bytes;
    }
    return front + gap + back;
}

std::string paint(const Style& style, Tone tone, const std::string& text) {
    if (!style.color || tone == Tone::kPlain || text.empty()) return text;
    const char* code = "0";
    switch (tone) {
        case Tone::kPlain:
            break;
        case Tone::kBold:
            code = "1";
            break;
        case Tone::kDim:
            code = "2";
            break;
        case Tone::kGood:
            code = "32";
            break;
        case Tone::kWarning:
            code = "33";
            break;
        case Tone::kBad:
            code = "31";
            break;
    }
    return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

std::string Table::render(const Style& style) const {
    std::vector<size_t> widths;
    for (const Column& column : columns_) widths.push_back(display_width(column.heading));
    for (const auto& row : rows_) {
        for (size_t i = 0; i < row.size(); i++) {
            widths[i] = std::max(widths[i], display_width(row[i]));
        }
    }
    size_t total = columns_.empty() ? 0 : 2 * (columns_.size() - 1);
    for (const size_t width : widths) total += width;
    for (size_t i = 0; i < columns_.size() && style.width > 0 && total > style.width; i++) {
        if (!columns_[i].may_shrink) continue;
        const size_t least = std::min<size_t>(widths[i], 16);
        const size_t shrunk = std::max(least, widths[i] - std::min(widths[i], total - style.width));
        total -= widths[i] - shrunk;
        widths[i] = shrunk;
    }

    std::string out;
    auto add_line = [&](const std::vector<std::string>& cells, Tone tone) {
        std::string line;
        size_t owed = 0; // spaces that only count when something follows
        for (size_t i = 0; i < cells.size(); i++) {
            const std::string cell =
                columns_[i].may_shrink ? shorten(cells[i], widths[i]) : cells[i];
            const size_t pad = widths[i] - display_width(cell);
            if (columns_[i].right_aligned) owed += pad;
            if (!cell.empty()) {
                line += std::string(owed, ' ') + paint(style, tone, cell);
                owed = 0;
            }
            if (!columns_[i].right_aligned) owed += pad;
            owed += 2;
        }
        out += line + "\n";
    };
    std::vector<std::string> headings;
    for (const Column& column : columns_) headings.push_back(column.heading);
    add_line(headings, Tone::kBold);
    for (const auto& row : rows_) add_line(row, Tone::kPlain);
    return out;
}

} // namespace speedbump::report
