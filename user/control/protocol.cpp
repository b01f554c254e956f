// SPDX-License-Identifier: MIT
#include "control/protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "targets/parser.h"
#include "util/text.h"

namespace speedbump::control {

namespace {

using nlohmann::ordered_json;

constexpr std::array<std::pair<ControlAction, std::string_view>, 5> kActions = {{
    {ControlAction::kStatus, "status"},
    {ControlAction::kSet, "set"},
    {ControlAction::kPause, "pause"},
    {ControlAction::kResume, "resume"},
    {ControlAction::kDetach, "detach"},
}};

// The kinds that a client must tell apart; all others are kIo to it.
constexpr std::array<std::pair<ErrorKind, std::string_view>, 4> kKinds = {{
    {ErrorKind::kUsage, "usage"},
    {ErrorKind::kNothingMatched, "nothing-matched"},
    {ErrorKind::kPermission, "permission"},
    {ErrorKind::kIo, "failed"},
}};

constexpr const char* kSetForm = "set PATTERN delay=20us, or every=, start=, duration=";

bool is_space(char c) {
    return c == ' ' || c == '\t';
}

std::string_view trim(std::string_view text) {
    while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
    while (!text.empty() && (is_space(text.back()) || text.back() == '\r')) text.remove_suffix(1);
    return text;
}

std::string shown(std::string_view text) {
    constexpr size_t kMaxShown = 60;
    return "'" + printable(text.substr(0, kMaxShown)) + (text.size() > kMaxShown ? "...'" : "'");
}

Error usage(std::string message, std::string hint) {
    return make_error(ErrorKind::kUsage, std::move(message)).with_hint(std::move(hint));
}

// Takes the pattern off the front of `rest`.
Result<std::string> take_pattern(std::string_view& rest) {
    std::string pattern;
    size_t at = 0;
    if (!rest.empty() && rest[0] == '"') {
        for (at = 1; at < rest.size() && rest[at] != '"'; ++at) {
            if (rest[at] == '\\' && at + 1 < rest.size()) ++at;
            pattern += rest[at];
        }
        if (at == rest.size()) return usage("set: missing closing '\"'", kSetForm);
        ++at;
        if (at < rest.size() && !is_space(rest[at])) {
            return usage("set: text right after the closing '\"'", kSetForm);
        }
    } else {
        while (at < rest.size() && !is_space(rest[at])) pattern += rest[at++];
    }
    if (pattern.empty()) return usage("set: no pattern", kSetForm);
    rest = trim(rest.substr(at));
    return pattern;
}

// The one parser of options is that of the targets file.
Result<targets::Options> parse_settings(std::string_view text) {
    if (text.empty()) return usage("set: nothing to change", kSetForm);
    const auto parsed = targets::parse_targets("*:* " + std::string(text), "set");
    if (!parsed.errors.empty()) {
        return usage("set: " + parsed.errors[0].message, parsed.errors[0].expectation);
    }
    const targets::Options& options = parsed.file.lines.at(0).options;
    if (options.pid) {
        return usage("set: pid= can't be changed in a live session", kSetForm);
    }
    if (options.mode || options.caller || options.thread) {
        return usage("set: mode=, caller= and thread= can't be changed in a live session",
                     kSetForm);
    }
    if (!options.delay && !options.every && !options.start && !options.duration) {
        return usage("set: nothing to change", kSetForm);
    }
    return options;
}

} // namespace

std::string_view control_action_name(ControlAction action) {
    return std::find_if(kActions.begin(), kActions.end(),
                        [action](const auto& one) { return one.first == action; })
        ->second;
}

Result<ControlRequest> parse_control_request(std::string_view line) {
    line = trim(line);
    if (line.size() > kMaxControlLine) {
        return usage(fmt::format("a request of {} bytes is too long", line.size()),
                     fmt::format("at most {} bytes in a line", kMaxControlLine));
    }
    const auto is_control = [](char c) {
        return static_cast<unsigned char>(c) < 0x20 && c != '\t';
    };
    if (std::any_of(line.begin(), line.end(), is_control)) {
        return usage("control character in " + shown(line), "a line of text");
    }
    const size_t end = std::min(line.find_first_of(" \t"), line.size());
    const std::string_view word = line.substr(0, end);
    std::string_view rest = trim(line.substr(end));
    const auto found = std::find_if(kActions.begin(), kActions.end(),
                                    [word](const auto& one) { return one.second == word; });
    if (found == kActions.end()) {
        return usage("unknown request " + shown(word),
                     "status, set PATTERN KEY=VALUE..., pause, resume or detach");
    }
    ControlRequest request;
    request.action = found->first;
    if (request.action != ControlAction::kSet) {
        if (rest.empty()) return request;
        return usage(fmt::format("{} takes nothing more, but {} follows", word, shown(rest)),
                     std::string(word));
    }
    auto pattern = take_pattern(rest);
    if (!pattern) return std::move(pattern).error();
    request.pattern = std::move(*pattern);
    auto change = parse_settings(rest);
    if (!change) return std::move(change).error();
    request.change = *change;
    return request;
}

Result<std::string> format_set_request(const std::string& pattern,
                                       const std::vector<std::string>& settings) {
    std::string line = "set \"";
    for (const char c : pattern) {
        if (c == '"' || c == '\\') line += '\\';
        line += c;
    }
    line += '"';
    for (const std::string& setting : settings) line += " " + setting;
    if (const auto request = parse_control_request(line); !request) return request.error();
    return line + "\n";
}

std::string format_control_answer(ControlAction action, const std::string& members) {
    return fmt::format("{{\"schema\":\"{}\",\"ok\":true,\"request\":\"{}\"{}}}\n", kControlSchema,
                       control_action_name(action), members);
}

std::string format_control_refusal(const Error& error) {
    const auto found = std::find_if(kKinds.begin(), kKinds.end(),
                                    [&error](const auto& one) { return one.first == error.kind; });
    const ordered_json document = {{"schema", kControlSchema},
                                   {"ok", false},
                                   {"kind", found == kKinds.end() ? "failed" : found->second},
                                   {"error", error.message},
                                   {"hint", error.hint}};
    return document.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

Result<std::string> read_control_answer(std::string answer) {
    const auto document = ordered_json::parse(answer, nullptr, false);
    const auto text = [&document](const char* key) {
        const auto found = document.find(key);
        return found != document.end() && found->is_string() ? found->get<std::string>() : "";
    };
    if (!document.is_object() || text("schema") != kControlSchema || !document.contains("ok") ||
        !document["ok"].is_boolean()) {
        return make_error(ErrorKind::kInvalid,
                          "not an answer of " + std::string(kControlSchema) + ": " + shown(answer));
    }
    if (document["ok"].get<bool>()) return answer;
    const std::string kind = text("kind");
    const auto found = std::find_if(kKinds.begin(), kKinds.end(),
                                    [&kind](const auto& one) { return one.second == kind; });
    return make_error(found == kKinds.end() ? ErrorKind::kIo : found->first, text("error"))
        .with_hint(text("hint"));
}

} // namespace speedbump::control
