// SPDX-License-Identifier: MIT
#include "targets/parser.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <limits>

#include "targets/matcher.h"
#include "util/fd.h"
#include "util/text.h"

namespace speedbump::targets {

namespace {

// Without bounds a hostile file of 16 MiB makes gigabytes of messages.
constexpr size_t kMaxErrors = 10'000;
constexpr size_t kMaxErrorsPerLine = 16;

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr std::string_view kAllOptions =
    "one of delay=, every=, start=, duration=, pid=, with no space around the '='";

bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

bool all_digits(std::string_view text) {
    return !text.empty() &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string in_quotes(std::string_view token) {
    constexpr size_t kShown = 60;
    return "'" + printable(token.substr(0, kShown)) + (token.size() > kShown ? "...'" : "'");
}

// Collects the errors of a text, up to a bound, and counts the others.
class ErrorList {
  public:
    void add(Diagnostic diagnostic) {
        in_line_ = diagnostic.line == last_line_ ? in_line_ + 1 : 1;
        last_line_ = diagnostic.line;
        if (errors_.size() >= kMaxErrors) {
            ++unlisted_;
        } else if (in_line_ <= kMaxErrorsPerLine) {
            errors_.push_back(std::move(diagnostic));
        }
    }

    // Whether a further error of this line would not be kept.
    bool is_full(size_t line) const { return line == last_line_ && in_line_ >= kMaxErrorsPerLine; }

    std::vector<Diagnostic> take() {
        if (unlisted_ > 0) {
            errors_.push_back({last_line_, 1, 1,
                               fmt::format("too many errors: {} more are not listed", unlisted_),
                               "a targets file", ""});
        }
        return std::move(errors_);
    }

  private:
    std::vector<Diagnostic> errors_;
    size_t last_line_ = 0;
    size_t in_line_ = 0;
    size_t unlisted_ = 0;
};

// Options given on a line win over those that are in force above it.
Options fold(const Options& above, const Options& given) {
    Options result = above;
    if (given.delay) result.delay = given.delay;
    if (given.every) result.every = given.every;
    if (given.start) result.start = given.start;
    if (given.duration) result.duration = given.duration;
    if (given.pid) result.pid = given.pid;
    return result;
}

// Parses one line. Positions are byte indexes into the line; a column is the index plus 1.
class LineParser {
  public:
    LineParser(std::string_view line, size_t number, ErrorList& errors)
        : line_(line), number_(number), errors_(errors) {}

    // Appends the target of the line to `lines`, or changes `defaults`, or reports.
    void parse(Options& defaults, std::vector<TargetLine>& lines);

  private:
    struct Span {
        size_t begin = 0;
        size_t end = 0;
    };
    struct Half {
        Span span;        // with the quotes
        std::string text; // without
        bool ok = true;   // false: an error was reported
    };

    bool check_bytes();
    void parse_defaults(Options& defaults);
    void parse_target(const Options& defaults, std::vector<TargetLine>& lines);
    Half parse_quoted();
    Half parse_container();
    Half parse_name(World world);
    bool check_container(const TargetLine& line, const Half& half);
    bool check_symbol(TargetLine& line, const Half& half);
    bool parse_options(Options& given, World world);
    bool parse_option(Span token, Options& given, World world);
    bool parse_bare_number(Span token, Options& given);
    bool parse_unknown_option(Span token);
    template <typename T>
    bool set_once(std::optional<T>& place, T value, Span token, std::string_view name);

    bool at_end() const { return at_ >= end_; }
    std::string_view text(Span span) const {
        return line_.substr(span.begin, span.end - span.begin);
    }
    void skip_space() {
        while (!at_end() && is_space(line_[at_])) ++at_;
    }
    bool at_comment() const {
        return !at_end() && line_[at_] == '#' && at_ > 0 && is_space(line_[at_ - 1]);
    }
    Span next_token() {
        const size_t begin = at_;
        while (!at_end() && !is_space(line_[at_])) ++at_;
        return {begin, at_};
    }
    // Reports an error at the span; the value is always false.
    bool fail(Span span, std::string message, std::string expectation) {
        const size_t length = span.end > span.begin ? span.end - span.begin : 1;
        errors_.add({number_, span.begin + 1, length, std::move(message), std::move(expectation),
                     std::string(line_)});
        return false;
    }

    std::string_view line_;
    size_t number_;
    ErrorList& errors_;
    size_t at_ = 0;
    size_t end_ = 0; // behind the last byte that is no white space
};

bool LineParser::check_bytes() {
    if (line_.size() > kMaxLineBytes) {
        return fail({kMaxLineBytes, kMaxLineBytes + 1},
                    fmt::format("line of {} bytes is too long", line_.size()),
                    fmt::format("at most {} bytes in a line", kMaxLineBytes));
    }
    const size_t nul = line_.find('\0');
    if (nul != std::string_view::npos) {
        return fail({nul, nul + 1}, "NUL byte", "a text file, which holds no NUL byte");
    }
    return true;
}

void LineParser::parse(Options& defaults, std::vector<TargetLine>& lines) {
    if (!line_.empty() && line_.back() == '\r') line_.remove_suffix(1);
    if (!check_bytes()) return;
    end_ = line_.size();
    while (end_ > 0 && is_space(line_[end_ - 1])) --end_;
    if (number_ == 1 && line_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
    skip_space();
    if (at_end() || line_[at_] == '#') return;
    if (line_[at_] == '@') {
        parse_defaults(defaults);
    } else {
        parse_target(defaults, lines);
    }
}

void LineParser::parse_defaults(Options& defaults) {
    const size_t sign = at_++;
    skip_space();
    if (at_end() || at_comment()) {
        fail({sign, sign + 1}, "'@' without an option",
             "a default for the lines below, such as @delay=20us");
        return;
    }
    Options given;
    // a bare number has no meaning of its own here, as in a Python line
    if (parse_options(given, World::kPython)) defaults = fold(defaults, given);
}

void LineParser::parse_target(const Options& defaults, std::vector<TargetLine>& lines) {
    const size_t begin = at_;
    const char first = line_[at_];
    if ((first == '-' || first == '=') && at_ + 1 < end_ && line_[at_ + 1] == '/') {
        fail({at_, at_ + 1}, fmt::format("'{}' is no command of a targets file", first),
             "+BINARY:SYMBOL to add a target, !+BINARY:SYMBOL to exclude one");
        return;
    }
    TargetLine line;
    line.line_number = number_;
    if (line_[at_] == '!') {
        line.exclude = true;
        ++at_;
        skip_space();
    }
    if (!at_end() && line_[at_] == '+') {
        line.world = World::kNative;
        ++at_;
        skip_space();
    }
    const bool is_native = line.world == World::kNative;

    const Half container = parse_container();
    if (!container.ok) return;
    if (at_end() || line_[at_] != ':') {
        const bool has_text = container.span.end > container.span.begin;
        const size_t target_end = has_text ? container.span.end : std::max(begin + 1, at_);
        fail({begin, target_end}, "missing ':' separator",
             is_native ? "+BINARY:SYMBOL" : "MODULE:NAME, or +BINARY:SYMBOL for a native target");
        return;
    }
    const size_t colon = at_++;
    bool good = true;
    if (container.text.empty()) {
        good = fail(
            container.span.end > container.span.begin ? container.span : Span{colon, colon + 1},
            is_native ? "Empty binary" : "Empty module pattern",
            is_native ? "a path, file name or soname, 'exe', or a glob before the ':'"
                      : "a module name, file path or glob before the ':', such as '*'");
    }
    const Half name = parse_name(line.world);
    if (!name.ok) return;
    if (name.text.empty()) {
        good = fail(name.span.end > name.span.begin ? name.span : Span{colon, colon + 1},
                    is_native ? "Empty name: no symbol" : "Empty name pattern",
                    is_native ? "a symbol, 0x and a file offset, or a glob behind the ':'"
                              : "a qualified name or glob behind the ':', such as 'Class.method'");
    }
    line.container = {container.text, has_glob(container.text)};
    line.name = {name.text, has_glob(name.text)};
    if (is_native) {
        if (!container.text.empty() && !check_container(line, container)) good = false;
        if (!name.text.empty() && !check_symbol(line, name)) good = false;
    }

    skip_space();
    if (line.exclude) {
        if (!at_end() && !at_comment()) {
            const Span token = next_token();
            good = fail(token, in_quotes(text(token)) + " behind an exclusion",
                        "nothing: an exclusion takes no options");
        }
    } else {
        Options given;
        if (!parse_options(given, line.world)) good = false;
        line.options = fold(defaults, given);
    }
    if (!good) return;
    size_t original_end = at_;
    while (is_space(line_[original_end - 1])) --original_end;
    line.original = line_.substr(begin, original_end - begin);
    lines.push_back(std::move(line));
}

LineParser::Half LineParser::parse_quoted() {
    Half half;
    const size_t begin = at_++;
    while (!at_end() && line_[at_] != '"') {
        if (line_[at_] == '\\') {
            const bool is_escape =
                at_ + 1 < end_ && (line_[at_ + 1] == '"' || line_[at_ + 1] == '\\');
            if (!is_escape) {
                half.ok = fail({at_, std::min(at_ + 2, end_)}, "unknown escape in quotes",
                               R"(\" for a quote, \\ for a backslash)");
                return half;
            }
            ++at_;
        }
        half.text += line_[at_++];
    }
    if (at_end()) {
        half.ok = fail({begin, begin + 1}, "quote is never closed", "a closing '\"'");
        return half;
    }
    half.span = {begin, ++at_};
    return half;
}

// Leaves the position at the ':', at a comment, or at the end.
LineParser::Half LineParser::parse_container() {
    if (!at_end() && line_[at_] == '"') {
        Half half = parse_quoted();
        if (!half.ok) return half;
        skip_space();
        if (!at_end() && line_[at_] != ':' && !at_comment()) {
            const Span token = next_token();
            half.ok = fail(token, in_quotes(text(token)) + " behind the closing quote",
                           "':' between the two halves");
        }
        return half;
    }
    Half half;
    half.span.begin = at_;
    while (!at_end() && line_[at_] != ':' && !at_comment()) ++at_;
    half.span.end = at_;
    while (half.span.end > half.span.begin && is_space(line_[half.span.end - 1])) --half.span.end;
    half.text = text(half.span);
    return half;
}

// Leaves the position behind the half: at white space or at the end.
LineParser::Half LineParser::parse_name(World world) {
    const size_t behind_colon = at_;
    skip_space();
    Half half;
    half.span = {behind_colon, behind_colon};
    if (at_end() || at_comment()) return half;
    if (line_[at_] == '"') {
        half = parse_quoted();
        if (half.ok && !at_end() && !is_space(line_[at_])) {
            const Span token = next_token();
            half.ok = fail(token, in_quotes(text(token)) + " behind the closing quote",
                           "white space before the options");
        }
        return half;
    }
    const size_t begin = at_;
    const Span token = next_token();
    const std::string_view word = text(token);
    constexpr std::array<std::string_view, 5> kStarts = {
        "delay=", "every=", "start=", "duration=", "pid="};
    const bool is_option =
        std::any_of(kStarts.begin(), kStarts.end(),
                    [word](std::string_view start) { return word.starts_with(start); }) ||
        (world == World::kNative && all_digits(word));
    if (begin > behind_colon && is_option) {
        at_ = behind_colon;
        return half;
    }
    half.span = token;
    half.text = word;
    return half;
}

bool LineParser::check_container(const TargetLine& line, const Half& half) {
    const std::string& binary = line.container.text;
    const bool has_slash = binary.find('/') != std::string::npos;
    // what a glob starts with may stand for the leading '/'
    const char first = binary.front();
    const bool may_be_absolute = first == '/' || first == '*' || first == '?' || first == '[';
    if (!has_slash || may_be_absolute) return true;
    return fail(half.span, "relative path " + in_quotes(binary) + " can match no mapped file",
                "an absolute path, a path glob such as '*/" + printable(binary.substr(0, 60)) +
                    "', a file name without '/', or 'exe'");
}

bool LineParser::check_symbol(TargetLine& line, const Half& half) {
    const std::string& symbol = line.name.text;
    if (symbol.front() == ':') {
        return fail(half.span, "symbol " + in_quotes(symbol) + " starts with ':'",
                    "+BINARY:SYMBOL, where the first ':' ends the binary: +exe:ns::function");
    }
    const bool is_offset = symbol.starts_with("0x") || symbol.starts_with("0X");
    if (!is_offset || line.name.is_glob) return true;
    uint64_t offset = 0;
    const char* begin = symbol.data() + 2;
    const char* end = symbol.data() + symbol.size();
    const auto [stop, status] = std::from_chars(begin, end, offset, 16);
    if (begin == end || stop != end || status != std::errc()) {
        return fail(half.span, "bad file offset " + in_quotes(symbol),
                    "0x and up to 16 hexadecimal digits");
    }
    line.file_offset = offset;
    return true;
}

bool LineParser::parse_options(Options& given, World world) {
    bool good = true;
    for (skip_space(); !at_end() && !at_comment(); skip_space()) {
        if (errors_.is_full(number_)) return false;
        const Span token = next_token();
        if (!parse_option(token, given, world)) good = false;
    }
    return good;
}

template <typename T>
bool LineParser::set_once(std::optional<T>& place, T value, Span token, std::string_view name) {
    if (place) {
        return fail(token, fmt::format("{} is given twice", name), "each option at most once");
    }
    place = value;
    return true;
}

bool LineParser::parse_option(Span token, Options& given, World world) {
    const std::string_view word = text(token);
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos) {
        if (world == World::kNative && all_digits(word)) return parse_bare_number(token, given);
        return parse_unknown_option(token);
    }
    const std::string_view key = word.substr(0, equals);
    const std::string_view value = word.substr(equals + 1);
    const Span value_span{token.begin + equals + 1, token.end};

    const bool is_time = key == "delay" || key == "start" || key == "duration";
    if (is_time) {
        Result<nanoseconds> time = parse_duration(value);
        if (!time) {
            return fail(value.empty() ? token : value_span,
                        fmt::format("bad {}: {}", key, time.error().message), time.error().hint);
        }
        if (key == "start") return set_once(given.start, *time, token, "start");
        if (key == "duration") return set_once(given.duration, *time, token, "duration");
        if (*time > kMaxDelay) {
            return fail(value_span, "bad delay: " + in_quotes(value) + " is more than 10s",
                        "a delay from 0 to 10s");
        }
        return set_once(given.delay, *time, token, "delay");
    }
    if (key == "every" || key == "pid") {
        const uint64_t largest = key == "pid"
                                     ? static_cast<uint64_t>(std::numeric_limits<pid_t>::max())
                                     : std::numeric_limits<uint64_t>::max();
        uint64_t number = 0;
        const auto [stop, status] =
            std::from_chars(value.data(), value.data() + value.size(), number);
        const bool is_good =
            all_digits(value) && status == std::errc() && number >= 1 && number <= largest;
        if (!is_good) {
            return fail(value.empty() ? token : value_span,
                        fmt::format("bad {}: {} is no whole number from 1 up to {}", key,
                                    in_quotes(value), largest),
                        key == "pid" ? "a process id, such as pid=1234"
                                     : "a whole number from 1 up, such as every=10");
        }
        if (key == "every") return set_once(given.every, number, token, "every");
        return set_once(given.pid, static_cast<pid_t>(number), token, "pid");
    }
    return parse_unknown_option(token);
}

bool LineParser::parse_bare_number(Span token, Options& given) {
    const Result<nanoseconds> delay = parse_duration(text(token));
    if (!delay || *delay > kMaxDelay) {
        return fail(token, "bad delay: " + in_quotes(text(token)) + " ns is more than 10s",
                    fmt::format("a delay from 0 to {} (nanoseconds)", SB_MAX_DELAY_NS));
    }
    return set_once(given.delay, *delay, token, "delay");
}

// What the word was most likely meant to be.
bool LineParser::parse_unknown_option(Span token) {
    const std::string_view word = text(token);
    const std::string_view before = line_.substr(0, token.begin);
    const auto count = [before](char c) { return std::count(before.begin(), before.end(), c); };
    if (count('(') > count(')') || count('<') > count('>')) {
        at_ = end_; // the rest is the rest of that signature
        return fail(token, "unexpected " + in_quotes(word),
                    "quotes around a half that holds white space: +exe:\"ns::f(int, char)\"");
    }
    if (all_digits(word)) {
        return fail(token, "bare number " + in_quotes(word),
                    fmt::format("delay={}ns; only a native target line takes a bare number", word));
    }
    constexpr std::array<std::string_view, 5> kKeys = {"delay", "every", "start", "duration",
                                                       "pid"};
    if (std::find(kKeys.begin(), kKeys.end(), word) != kKeys.end()) {
        at_ = end_; // what follows is most likely its value
        return fail(token, "option " + in_quotes(word) + " has no value",
                    fmt::format("{}=VALUE, with no space around the '='", word));
    }
    return fail(token, "unknown option " + in_quotes(word), std::string(kAllOptions));
}

} // namespace

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
