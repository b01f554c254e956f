// SPDX-License-Identifier: MIT
// The grammar of a line: its target and the two halves of it.
#include "targets/line_parser.h"

#include <array>
#include <cerrno>
#include <charconv>

#include "targets/matcher.h"

namespace speedbump::targets {

namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// Options given on a line win over those that are in force above it.
Options fold(const Options& above, const Options& given) {
    Options result = above;
    if (given.delay) result.delay = given.delay;
    if (given.every) result.every = given.every;
    if (given.start) result.start = given.start;
    if (given.duration) result.duration = given.duration;
    if (given.pid) result.pid = given.pid;
    if (given.mode) result.mode = given.mode;
    if (given.caller) result.caller = given.caller;
    if (given.thread) result.thread = given.thread;
    return result;
}

} // namespace

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
    if (parse_options(given, Runtime::kPython)) defaults = fold(defaults, given);
}

void LineParser::parse_target(const Options& defaults, std::vector<TargetLine>& lines) {
    const size_t begin = at_;
    const char first = line_[at_];
    if ((first == '-' || first == '=') && at_ + 1 < end_ && line_[at_ + 1] == '/') {
        fail({at_, at_ + 1}, fmt::format("'{}' is not a command of a targets file", first),
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
        line.runtime = Runtime::kNative;
        ++at_;
        skip_space();
    }
    const bool is_native = line.runtime == Runtime::kNative;

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
    const Half name = parse_name(line.runtime);
    if (!name.ok) return;
    if (name.text.empty()) {
        good = fail(name.span.end > name.span.begin ? name.span : Span{colon, colon + 1},
                    is_native ? "Empty name: no symbol" : "Empty name pattern",
                    is_native ? "a symbol, 0x and a file offset, or a glob after the ':'"
                              : "a qualified name or glob after the ':', such as 'Class.method'");
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
            good = fail(token, in_quotes(text(token)) + " after an exclusion",
                        "nothing: an exclusion takes no options");
        }
    } else {
        Options given;
        if (!parse_options(given, line.runtime)) good = false;
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
            half.ok = fail(token, in_quotes(text(token)) + " after the closing quote",
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

// Leaves the position after the half: at white space or at the end.
LineParser::Half LineParser::parse_name(Runtime runtime) {
    const size_t behind_colon = at_;
    skip_space();
    Half half;
    half.span = {behind_colon, behind_colon};
    if (at_end() || at_comment()) return half;
    if (line_[at_] == '"') {
        half = parse_quoted();
        if (half.ok && !at_end() && !is_space(line_[at_])) {
            const Span token = next_token();
            half.ok = fail(token, in_quotes(text(token)) + " after the closing quote",
                           "white space before the options");
        }
        return half;
    }
    const size_t begin = at_;
    const Span token = next_token();
    const std::string_view word = text(token);
    constexpr std::array<std::string_view, 6> kStarts = {
        "delay=", "every=", "start=", "duration=", "pid=", "mode="};
    const bool is_option =
        std::any_of(kStarts.begin(), kStarts.end(),
                    [word](std::string_view start) { return word.starts_with(start); }) ||
        (runtime == Runtime::kNative && all_digits(word));
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

} // namespace speedbump::targets
