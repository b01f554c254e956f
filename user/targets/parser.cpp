// SPDX-License-Identifier: MIT
#include "targets/parser.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "targets/line_parser.h"
#include "util/fd.h"

namespace speedbump::targets {

ParseOutcome parse_targets(std::string_view text, std::string path) {
    ParseOutcome outcome;
    outcome.file.path = std::move(path);
    ErrorList errors;
    Options defaults;
    size_t number = 0;
    while (!text.empty()) {
        const size_t end = std::min(text.find('\n'), text.size());
        LineParser(text.substr(0, end), ++number, errors).parse(defaults, outcome.file.lines);
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    outcome.errors = errors.take();
    return outcome;
}

Result<TargetsFile> load_targets(const std::string& path) {
    const auto fail = [&path](const std::string& what, int error_number) {
        Error error = errno_error(what, error_number);
        error.kind = ErrorKind::kTargetsFile;
        return std::move(error).with_context("targets file '" + path + "'");
    };
    const auto refuse = [&path](const std::string& what) {
        return make_error(ErrorKind::kTargetsFile, "targets file '" + path + "': " + what);
    };
    // O_NONBLOCK: opening a fifo must not wait for a writer
    const Fd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (!fd.valid()) return fail("open", errno);
    struct stat status = {};
    if (::fstat(fd.get(), &status) != 0) return fail("fstat", errno);
    if (!S_ISREG(status.st_mode)) return refuse("is no regular file");
    const std::string too_big = fmt::format("is larger than {} MiB", kMaxFileBytes >> 20);
    if (static_cast<uint64_t>(status.st_size) > kMaxFileBytes) return refuse(too_big);

    std::string text;
    std::array<char, 65536> buffer;
    while (true) {
        const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail("read", errno);
        if (got == 0) break;
        text.append(buffer.data(), static_cast<size_t>(got));
        if (text.size() > kMaxFileBytes) return refuse(too_big); // it grew, or has no stated size
    }
    ParseOutcome outcome = parse_targets(text, path);
    if (outcome.errors.empty()) return std::move(outcome.file);
    return make_error(ErrorKind::kTargetsFile, format_diagnostics(path, outcome.errors));
}

} // namespace speedbump::targets
