// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

// Text for a terminal: columns and colours. Pure functions.
namespace speedbump::report {

// How text output looks: decided once by the caller from the terminal and the environment.
struct Style {
    bool color = false;
    size_t width = 0;     // columns; 0: lines may be as long as they are
    size_t max_rows = 40; // target rows in a table before only the top ones are shown
};

// 0.1234 as "12.3%".
std::string show_share(double share);

// Columns that printable() text takes on a terminal; colour sequences are not counted.
size_t display_width(std::string_view text);
// The text cut in its middle to at most `width` columns with "...".
std::string shorten(const std::string& text, size_t width);

enum class Tone { kPlain, kBold, kDim, kGood, kWarning, kBad };
// The text in a colour, when the style has colours.
std::string paint(const Style& style, Tone tone, const std::string& text);

// Rows under headings, columns aligned. Cells must be printable() already.
class Table {
  public:
    struct Column {
        std::string heading;
        bool right_aligned = false;
        bool may_shrink = false; // cut in the middle where the style's width is too small
    };
    explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
    // One cell per column.
    void add_row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
    // All lines, each with a newline and without trailing white space.
    std::string render(const Style& style) const;

  private:
    std::vector<Column> columns_;
    std::vector<std::vector<std::string>> rows_;
};

} // namespace speedbump::report
