// SPDX-License-Identifier: MIT
#include "experiment/progress_polls.h"

#include <fcntl.h>
#include <re2/re2.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <vector>

#include "experiment/program_output.h"
#include "experiment/web_page.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/text.h"

namespace speedbump::experiment {

namespace {

constexpr auto kPatience = std::chrono::seconds(2); // for one answer
constexpr size_t kMaxAnswer = 4u << 20;
constexpr size_t kMaxLine = 1u << 20; // the rest of a longer one is not looked at

// Patterns are matched in time that grows with the line alone, whatever they are.
using Pattern = std::unique_ptr<const RE2>;

Result<Pattern> compile(const ProgressSpec& spec) {
    RE2::Options options;
    options.set_log_errors(false);
    options.set_encoding(RE2::Options::EncodingLatin1); // a log may hold any bytes
    auto pattern = std::make_unique<const RE2>(spec.second, options);
    if (pattern->ok()) return Pattern(std::move(pattern));
    return make_error(ErrorKind::kUsage,
                      "'" + printable(spec.second) +
                          "' is not a regular expression: " + printable(pattern->error()))
        .with_hint("man re2, or https://github.com/google/re2/wiki/Syntax, has what there is");
}

// "1234", " 1.5e6 requests": the number that the text begins with.
std::optional<uint64_t> number_of(const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (end == text.c_str() || !(value >= 0) || value > 1e18) return std::nullopt;
    return static_cast<uint64_t>(std::llround(value));
}

// What a line tells.
struct Found {
    bool matches = false;
    std::optional<uint64_t> number; // its first group's, or else that of all that matches
};

Found look_for(const RE2& pattern, const std::string& line) {
    re2::StringPiece groups[2];
    const int count = pattern.NumberOfCapturingGroups() > 0 ? 2 : 1;
    if (!pattern.Match(line, 0, line.size(), RE2::UNANCHORED, groups, count)) return {};
    return {true, number_of(std::string(groups[count - 1].data() ? groups[count - 1] : ""))};
}

class Command : public ProgressPoint {
  public:
    explicit Command(std::string command) : command_(std::move(command)) {}

    Result<Reading> read(const Totals& /*totals*/) override {
        auto output = output_of({"/bin/sh", "-c", command_}, kPatience, kMaxAnswer);
        if (!output) return std::move(output).error();
        const auto units = number_of(output->text);
        if (output->status != 0 || !units)
            return make_error(ErrorKind::kInvalid, "'" + printable(command_) +
                                                       "' prints no running total: '" +
                                                       printable(output->text.substr(0, 60)) + "'");
        return Reading{*units, monotonic_ns()};
    }

  private:
    std::string command_;
};

// Follows the file from its present end, as tail -F does.
class File : public ProgressPoint {
  public:
    File(std::string path, Pattern pattern)
        : path_(std::move(path)), pattern_(std::move(pattern)) {}

    Result<Reading> read(const Totals& /*totals*/) override {
        if (auto opened = reopen_if_rotated(); !opened) return std::move(opened).error();
        char buffer[65536];
        for (;;) {
            const ssize_t got = ::read(fd_.get(), buffer, sizeof(buffer));
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) return errno_error("read " + path_, errno);
            if (got == 0) break;
            for (ssize_t i = 0; i < got; ++i) take(buffer[i]);
        }
        return Reading{units_, monotonic_ns()};
    }

    Result<void> open_at_end() {
        if (auto opened = reopen_if_rotated(); !opened) return opened;
        if (::lseek(fd_.get(), 0, SEEK_END) < 0) return errno_error("seek in " + path_, errno);
        return {};
    }

  private:
    Result<void> reopen_if_rotated() {
        struct stat now = {}, mine = {};
        if (::stat(path_.c_str(), &now) != 0) {
            if (fd_.valid()) return {}; // between two names
            return errno_error("open " + path_, errno);
        }
        const bool same = fd_.valid() && ::fstat(fd_.get(), &mine) == 0 &&
                          now.st_ino == mine.st_ino && now.st_dev == mine.st_dev;
        if (same) {
            if (now.st_size < ::lseek(fd_.get(), 0, SEEK_CUR)) ::lseek(fd_.get(), 0, SEEK_SET);
            return {};
        }
        if (!S_ISREG(now.st_mode))
            return make_error(ErrorKind::kInvalid, path_ + " is not a regular file");
        Fd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
        if (!fd.valid()) return errno_error("open " + path_, errno);
        fd_ = std::move(fd);
        return {};
    }

    void take(char character) {
        if (character != '\n') {
            if (line_.size() < kMaxLine) line_ += character;
            return;
        }
        const Found found = look_for(*pattern_, line_);
        if (found.matches && pattern_->NumberOfCapturingGroups() == 0)
            ++units_;
        else if (found.number)
            units_ = *found.number;
        line_.clear();
    }

    std::string path_;
    Pattern pattern_;
    Fd fd_;
    std::string line_;
    uint64_t units_ = 0;
};

class Http : public ProgressPoint {
  public:
    Http(std::string url, Pattern pattern) : url_(std::move(url)), pattern_(std::move(pattern)) {}

    Result<Reading> read(const Totals& /*totals*/) override {
        const Result<std::string> got = page_.get(url_, kPatience, kMaxAnswer);
        if (!got) return got.error();
        const std::string& page = *got;
        const uint64_t at = monotonic_ns();
        for (size_t begin = 0; begin < page.size();) {
            const size_t end = std::min(page.find('\n', begin), page.size());
            const std::string line = page.substr(begin, std::min(end - begin, kMaxLine));
            begin = end + 1;
            if (const auto units = look_for(*pattern_, line).number) return Reading{*units, at};
        }
        return make_error(ErrorKind::kInvalid,
                          "no line of " + printable(url_) + " has the number that is looked for");
    }

  private:
    std::string url_;
    Pattern pattern_;
    WebPage page_; // kept, and with it the connection
};

} // namespace

Result<std::unique_ptr<ProgressPoint>> open_command(const ProgressSpec& spec) {
    return std::unique_ptr<ProgressPoint>(std::make_unique<Command>(spec.first));
}

Result<std::unique_ptr<ProgressPoint>> open_file(const ProgressSpec& spec) {
    auto pattern = compile(spec);
    if (!pattern) return std::move(pattern).error();
    auto file = std::make_unique<File>(spec.first, std::move(*pattern));
    if (auto opened = file->open_at_end(); !opened) return std::move(opened).error();
    return std::unique_ptr<ProgressPoint>(std::move(file));
}

Result<std::unique_ptr<ProgressPoint>> open_http(const ProgressSpec& spec) {
    auto pattern = compile(spec);
    if (!pattern) return std::move(pattern).error();
    return std::unique_ptr<ProgressPoint>(std::make_unique<Http>(spec.first, std::move(*pattern)));
}

} // namespace speedbump::experiment
