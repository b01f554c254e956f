// SPDX-License-Identifier: MIT
#include "cli/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
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

// What is on the disk at this path is this very file.
bool is_at(const std::string& path, int fd) {
    struct stat there = {}, here = {};
    return ::lstat(path.c_str(), &there) == 0 && ::fstat(fd, &here) == 0 &&
           there.st_dev == here.st_dev && there.st_ino == here.st_ino;
}

// The file system says that there is no room. Others can't take it ahead at all (NFS before 4.2,
// FUSE), or are not let.
bool has_no_room(int error_number) {
    return error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG;
}

// Takes the room on the disk first, where it can be: 0, or the errno, and the file is as it was.
int write_whole(int fd, std::string_view text) {
    struct stat before = {};
    if (::fstat(fd, &before) != 0) return errno;
    if (!S_ISREG(before.st_mode)) return write_all(fd, text); // a device or a pipe has no length
    const auto size = static_cast<off_t>(text.size());
    int error_number = 0;
    do { // posix_fallocate() would read what is there
        error_number = size == 0 || ::fallocate(fd, 0, 0, size) == 0 ? 0 : errno;
    } while (error_number == EINTR);
    if (has_no_room(error_number)) {
        if (::ftruncate(fd, before.st_size) != 0) return errno;
        return error_number;
    }
    error_number = write_all(fd, text);
    if (error_number == 0 && ::ftruncate(fd, size) != 0) error_number = errno;
    return error_number;
}

} // namespace

Result<Output> Output::open(const OutputArguments& arguments) {
    Output output;
    output.arguments_ = arguments;
    auto file = OutputFile::open(arguments.file);
    if (!file) return std::move(file).error();
    output.file_ = std::move(*file);
    return output;
}

bool Output::animated() const {
    const char* terminal = std::getenv("TERM");
    const bool is_dumb = terminal != nullptr && std::string_view(terminal) == "dumb";
    return !arguments_.json && !arguments_.quiet && !file_.is_open() && !is_dumb &&
           ::isatty(STDOUT_FILENO) == 1;
}

report::Style Output::style() const {
    report::Style style;
    style.color = !file_.is_open() && log::use_colour(STDOUT_FILENO);
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
    if (!written_) return;
    if (file_.is_open())
        written_ = file_.append(text);
    else if (const int error_number = write_all(fd(), text))
        written_ = errno_error("write to stdout", error_number);
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
    return written_;
}

Result<OutputFile> OutputFile::open(const std::string& path) {
    OutputFile file;
    if (path.empty()) return file;
    file.path_ = path;
    constexpr int kFlags = O_WRONLY | O_CREAT | O_CLOEXEC;
    file.fd_ = Fd(::open(path.c_str(), kFlags | O_EXCL, 0666));
    file.is_new_ = file.fd_.valid();
    if (!file.is_new_) file.fd_ = Fd(::open(path.c_str(), kFlags, 0666));
    if (!file.fd_.valid()) return errno_error("open " + path, errno);
    return file;
}

OutputFile::~OutputFile() {
    if (fd_.valid() && is_new_ && is_at(path_, fd_.get())) ::unlink(path_.c_str());
}

Result<void> OutputFile::failed(int error_number) const {
    return errno_error("write " + path_, error_number);
}

Result<void> OutputFile::write(std::string_view text) {
    if (!fd_.valid()) return {};
    if (const int error_number = write_whole(fd_.get(), text)) return failed(error_number);
    is_new_ = false;
    return {};
}

Result<void> OutputFile::append(std::string_view text) {
    if (!std::exchange(is_begun_, true) && ::ftruncate(fd_.get(), 0) != 0 && errno != EINVAL)
        return failed(errno);
    if (const int error_number = write_all(fd_.get(), text)) return failed(error_number);
    is_new_ = false;
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
