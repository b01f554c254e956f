// SPDX-License-Identifier: MIT
#include "cli/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "util/log.h"
#include "util/text.h"

namespace speedbump::cli {

namespace {

// 0, or the errno.
int write_all(int fd, std::string_view text) {
    while (!text.empty()) {
        const ssize_t written = ::write(fd, text.data(), text.size());
        if (written < 0 && errno != EINTR) return errno;
        if (written > 0) text.remove_prefix(static_cast<size_t>(written));
    }
    return 0;
}

} // namespace

Result<Output> Output::open(const OutputArguments& arguments) {
    Output output;
    output.arguments_ = arguments;
    if (!arguments.file.empty()) {
        output.file_ =
            Fd(::open(arguments.file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
        if (!output.file_.valid()) return errno_error("open " + arguments.file, errno);
    }
    return output;
}

bool Output::animated() const {
    const char* terminal = std::getenv("TERM");
    const bool is_dumb = terminal != nullptr && std::string_view(terminal) == "dumb";
    return !arguments_.json && !arguments_.quiet && !file_.valid() && !is_dumb &&
           ::isatty(STDOUT_FILENO) == 1;
}

report::Style Output::style() const {
    report::Style style;
    style.color = !file_.valid() && log::use_colour(STDOUT_FILENO);
    winsize size = {};
    if (::isatty(fd()) == 1 && ::ioctl(fd(), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
        style.width = size.ws_col;
        // heading, line summaries, sum, and the warnings below must fit as well
        style.max_rows = std::max<size_t>(5, size.ws_row > 12 ? size.ws_row - 12u : 0);
    }
    if (arguments_.verbose) style.max_rows = SIZE_MAX;
    return style;
}

bool Output::takes_more() const {
    pollfd here = {.fd = fd(), .events = POLLOUT, .revents = 0};
    return ::poll(&here, 1, 0) != 0;
}

void Output::write(std::string_view text) {
    if (error_number_ == 0) error_number_ = write_all(fd(), text);
}

void Output::write_line(std::string_view text) {
    write(report::shown_json(text) + "\n");
}

void Output::say(std::string_view text) {
    if (animated()) redraw(printable(text) + "\n");
}

void Output::redraw(const std::string& text) {
    erase();
    write(text);
    drawn_lines_ = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

void Output::erase() {
    if (drawn_lines_ > 0) write(fmt::format("\x1b[{}A\r\x1b[J", drawn_lines_));
    drawn_lines_ = 0;
}

Result<void> Output::finish() {
    if (error_number_ == 0) return {};
    return errno_error("write " + (arguments_.file.empty() ? "to stdout" : arguments_.file),
                       error_number_);
}

Result<OutputFile> OutputFile::open(const std::string& path) {
    OutputFile file;
    if (path.empty()) return file;
    file.path_ = path;
    file.fd_ = Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    if (!file.fd_.valid()) return errno_error("open " + path, errno);
    return file;
}

Result<void> OutputFile::write(std::string_view text) {
    if (!fd_.valid()) return {};
    // A device or a pipe has no length to cut.
    int error_number = ::ftruncate(fd_.get(), 0) != 0 && errno != EINVAL ? errno : 0;
    if (error_number == 0) error_number = write_all(fd_.get(), text);
    if (error_number != 0) return errno_error("write " + path_, error_number);
    return {};
}

report::Context make_context(const std::string& command) {
    report::Context context;
    context.command = command;
    context.version = SPEEDBUMP_VERSION;
    utsname name = {};
    if (::uname(&name) == 0) {
        context.host = name.nodename;
        context.kernel = name.release;
        context.machine = name.machine;
    }
    return context;
}

} // namespace speedbump::cli
