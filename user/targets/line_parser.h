// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "targets/parser.h"
#include "targets/target.h"
#include "util/text.h"

namespace speedbump::targets {

inline bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

inline bool all_digits(std::string_view text) {
    return !text.empty() &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

inline std::string in_quotes(std::string_view token) {
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
    // Without bounds a hostile file of 16 MiB makes gigabytes of messages.
    static constexpr size_t kMaxErrors = 10'000;
    static constexpr size_t kMaxErrorsPerLine = 16;

    std::vector<Diagnostic> errors_;
    size_t last_line_ = 0;
    size_t in_line_ = 0;
    size_t unlisted_ = 0;
};

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

} // namespace speedbump::targets
