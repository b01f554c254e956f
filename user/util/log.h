// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace speedbump::log {

// From what must be seen to what only helps to find faults. A message is written when its level is
// at most the sink's.
enum class Level { kError, kWarning, kInfo, kDebug };

// What is written from now on; kInfo at the start. -q: kWarning, -v: kDebug.
void set_level(Level level);
Level level();

// Writes "speedbump: error: TEXT" (or warning, debug; an info message has no level word) and a
// newline to stderr, in one write(2), so that lines of several threads and processes stay whole.
// Callable from any thread; errno is kept. TEXT becomes one line: names in it may be anybody's.
void write(Level level, std::string_view text);

inline void error(std::string_view text) {
    write(Level::kError, text);
}
inline void warning(std::string_view text) {
    write(Level::kWarning, text);
}
inline void info(std::string_view text) {
    write(Level::kInfo, text);
}
inline void debug(std::string_view text) {
    write(Level::kDebug, text);
}

// Whether output to this descriptor should be coloured: CLICOLOR_FORCE set and not "0": yes; else
// NO_COLOR set and not empty: no; else when it is a terminal and TERM is not "dumb".
bool use_colour(int fd);

// The line that write() sends, colour as asked for.
std::string format_line(Level level, std::string_view text, bool colour);

} // namespace speedbump::log
