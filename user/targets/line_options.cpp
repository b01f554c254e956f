// SPDX-License-Identifier: MIT
// The options of a line: what LineParser makes of KEY=VALUE.
#include <array>
#include <charconv>
#include <limits>

#include "targets/line_parser.h"
#include "targets/matcher.h"

namespace speedbump::targets {

namespace {

constexpr std::string_view kAllOptions =
    "one of delay=, every=, start=, duration=, pid=, mode=, caller=, thread=, with no space around "
    "the '='";

} // namespace

bool LineParser::parse_options(Options& given, Runtime runtime) {
    bool good = true;
    for (skip_space(); !at_end() && !at_comment(); skip_space()) {
        if (errors_.is_full(number_)) return false;
        const Span token = next_token();
        if (!parse_option(token, given, runtime)) good = false;
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

bool LineParser::parse_option(Span token, Options& given, Runtime runtime) {
    const std::string_view word = text(token);
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos) {
        if (runtime == Runtime::kNative && all_digits(word)) return parse_bare_number(token, given);
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
                        fmt::format("bad {}: {} is not a whole number from 1 up to {}", key,
                                    in_quotes(value), largest),
                        key == "pid" ? "a process id, such as pid=1234"
                                     : "a whole number from 1 up, such as every=10");
        }
        if (key == "every") return set_once(given.every, number, token, "every");
        return set_once(given.pid, static_cast<pid_t>(number), token, "pid");
    }
    if (key == "mode") {
        if (value != "spin" && value != "sleep")
            return fail(value.empty() ? token : value_span, "bad mode: " + in_quotes(value),
                        "mode=spin or mode=sleep");
        return set_once(given.mode, value == "sleep" ? Mode::kSleep : Mode::kSpin, token, "mode");
    }
    if (key == "caller" || key == "thread") {
        if (value.empty())
            return fail(token, fmt::format("{}= has no value", key),
                        key == "caller" ? "the name or glob of a native function"
                                        : "the name or glob of a thread's name");
        if (key == "thread" && value.size() > kMaxThreadPattern)
            return fail(value_span, "bad thread: " + in_quotes(value) + " is too long",
                        fmt::format("at most {} bytes; names of threads have no more than 15",
                                    kMaxThreadPattern));
        const Pattern pattern{std::string(value), has_glob(value)};
        return set_once(key == "caller" ? given.caller : given.thread, pattern, token, key);
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
    constexpr std::array<std::string_view, 8> kKeys = {"delay", "every", "start",  "duration",
                                                       "pid",   "mode",  "caller", "thread"};
    if (std::find(kKeys.begin(), kKeys.end(), word) != kKeys.end()) {
        at_ = end_; // what follows is most likely its value
        return fail(token, "option " + in_quotes(word) + " has no value",
                    fmt::format("{}=VALUE, with no space around the '='", word));
    }
    return fail(token, "unknown option " + in_quotes(word), std::string(kAllOptions));
}

} // namespace speedbump::targets
