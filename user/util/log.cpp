// SPDX-License-Identifier: MIT
#include "util/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "util/text.h"

namespace speedbump::log {

namespace {

std::atomic<Level> sink_level{Level::kInfo};

struct Style {
    const char* word;
    const char* colour;
};

Style style_of(Level level) {
    switch (level) {
        case Level::kError:
            return {"error: ", "\033[1;31m"};
        case Level::kWarning:
            return {"warning: ", "\033[1;33m"};
        case Level::kInfo:
            return {"", ""};
        case Level::kDebug:
            return {"debug: ", "\033[2m"};
    }
    return {"", ""};
}

} // namespace

void set_level(Level level) {
    sink_level.store(level, std::memory_order_relaxed);
}

Level level() {
    return sink_level.load(std::memory_order_relaxed);
}

bool use_colour(int fd) {
    const char* force = std::getenv("CLICOLOR_FORCE");
    if (force != nullptr && *force != '\0' && std::strcmp(force, "0") != 0) return true;
    const char* no_colour = std::getenv("NO_COLOR");
    if (no_colour != nullptr && *no_colour != '\0') return false;
    const char* terminal = std::getenv("TERM");
    const bool is_dumb = terminal != nullptr && std::strcmp(terminal, "dumb") == 0;
    return ::isatty(fd) == 1 && !is_dumb;
}

std::string format_line(Level level, std::string_view text, bool colour) {
    const Style style = style_of(level);
    std::string line = "speedbump: ";
    if (colour) line += style.colour;
    line += style.word;
    if (colour && *style.colour != '\0') line += "\033[0m";
    // Whatever a process calls itself, it neither gets at the terminal by it nor writes lines of
    // its own here.
    return line + printable(text) + '\n';
}

void write(Level level, std::string_view text) {
    if (level > log::level()) return;
    const int saved_errno = errno;
    const std::string line = format_line(level, text, use_colour(STDERR_FILENO));
    size_t done = 0;
    while (done < line.size()) {
        const ssize_t written = ::write(STDERR_FILENO, line.data() + done, line.size() - done);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) break; // nowhere left to complain to
        done += static_cast<size_t>(written);
    }
    errno = saved_errno;
}

} // namespace speedbump::log
