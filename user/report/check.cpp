// SPDX-License-Identifier: MIT
#include "report/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "report/text.h"
#include "util/text.h"
#include "util/units.h"

namespace speedbump::report {

namespace {

using targets::TargetLine;
using targets::TargetsFile;

// Whether a line can be decided by looking at the named file alone.
bool names_one_file(const TargetLine& line) {
    return !line.container.is_glob && line.container.text.starts_with('/');
}

std::string state_text(LineState state, size_t functions) {
    switch (state) {
        case LineState::kMatched:
            return show_count(functions) + (functions == 1 ? " function" : " functions");
        case LineState::kRefused:
            return "can't be probed, see below";
        case LineState::kUnmatched:
            return "matches nothing";
        case LineState::kNotLookedAt:
            return "not looked at: needs --pid PID or --exe FILE";
        case LineState::kPython:
            return "Python: decided in the interpreter, when the function first runs";
        case LineState::kExclusion:
            return "exclusion";
    }
    return "";
}

Tone state_tone(LineState state) {
    switch (state) {
        case LineState::kMatched:
            return Tone::kGood;
        case LineState::kRefused:
        case LineState::kUnmatched:
            return Tone::kBad;
        case LineState::kNotLookedAt:
            return Tone::kWarning;
        default:
            return Tone::kDim;
    }
}

// One half of a targets line for exactly this text, behind `start`. What is a glob's stands in a
// set of its own; what no line can hold, or would not be shown as it is, is matched by a set of all
// but plain characters. Quoted where white space, a quote, or (in the first half) a colon or what
// begins the line would mean something.
std::string exact_half(std::string_view text, bool is_first, std::string start = "") {
    constexpr std::string_view kNotPlain = "[! -~]";
    std::string escaped = std::move(start);
    for (size_t at = 0; at < text.size();) {
        const size_t bytes = decode_character(text, at).bytes;
        const std::string_view character = text.substr(at, bytes);
        at += bytes;
        if (character == "*" || character == "?" || character == "[")
            escaped.append("[").append(character).append("]");
        else if (printable(character) != character)
            escaped += kNotPlain;
        else
            escaped += character;
    }
    const char first = escaped.empty() ? '\0' : escaped.front();
    if (!is_first && (first == ':' || escaped.starts_with("0x") || escaped.starts_with("0X")))
        escaped = fmt::format("[{}]{}", first, escaped.substr(1)); // else no name, or an offset
    const bool needs_quotes =
        escaped.find_first_of(is_first ? " \t\":" : " \t\"") != std::string::npos ||
        (is_first && (std::string_view("#!+@-=").find(first) != std::string_view::npos ||
                      escaped.starts_with("\xef\xbb\xbf")));
    if (!needs_quotes) return escaped;
    std::string quoted = "\"";
    for (const char c : escaped) {
        if (c == '"' || c == '\\') quoted += '\\';
        quoted += c;
    }
    return quoted + "\"";
}

// Of two halves; "" where there is no such line.
std::string exact_line(std::string_view sign, std::string_view container, std::string_view name,
                       std::string name_start = "") {
    if (container.empty() || name.empty()) return "";
    std::string line = fmt::format("{}{}:{}", sign, exact_half(container, true),
                                   exact_half(name, false, std::move(name_start)));
    return line.size() <= targets::kMaxLineBytes ? line : "";
}

} // namespace

std::vector<LineState> line_states(const CheckReport& report, const TargetsFile& file) {
    std::vector<LineState> states;
    for (size_t i = 0; i < file.lines.size(); i++) {
        const TargetLine& line = file.lines[i];
        const bool matched =
            std::any_of(report.matches.begin(), report.matches.end(),
                        [&](const process::NativeMatch& match) { return match.line_index == i; });
        const bool refused =
            std::any_of(report.skipped.begin(), report.skipped.end(),
                        [&](const process::Skipped& one) { return one.line_index == i; });
        if (line.exclude) {
            states.push_back(LineState::kExclusion);
        } else if (line.runtime == targets::Runtime::kPython) {
            states.push_back(LineState::kPython);
        } else if (matched) {
            states.push_back(LineState::kMatched);
        } else if (refused) {
            states.push_back(LineState::kRefused);
        } else if (report.places.empty() && !names_one_file(line)) {
            states.push_back(LineState::kNotLookedAt);
        } else {
            states.push_back(LineState::kUnmatched);
        }
    }
    return states;
}

bool nothing_matched(const CheckReport& report, const TargetsFile& file) {
    const std::vector<LineState> states = line_states(report, file);
    return std::all_of(states.begin(), states.end(), [](LineState state) {
        return state == LineState::kRefused || state == LineState::kUnmatched ||
               state == LineState::kExclusion;
    });
}

std::string check_text(const CheckReport& report, const TargetsFile& file, const Style& style,
                       bool verbose) {
    std::string out;
    for (const std::string& place : report.places) out += "looked at " + printable(place) + "\n";
    const std::vector<LineState> states = line_states(report, file);
    for (size_t i = 0; i < file.lines.size(); i++) {
        const TargetLine& line = file.lines[i];
        std::vector<const process::NativeMatch*> matches;
        for (const process::NativeMatch& match : report.matches) {
            if (match.line_index == i) matches.push_back(&match);
        }
        out +=
            fmt::format("{}:{}: {}  {}\n", printable(file.path), line.line_number,
                        paint(style, Tone::kBold, printable(line.original)),
                        paint(style, state_tone(states[i]), state_text(states[i], matches.size())));
        for (const process::NativeMatch* match : matches) {
            out += fmt::format("    {}:{} at 0x{:x}\n", printable(match->path),
                               printable(match->name), match->entry_offset);
            if (!verbose) continue;
            session::Target target;
            target.site = match->site;
            target.entry_offset = match->entry_offset;
            out += fmt::format("        probe: {}\n", describe_site(target));
            if (!match->site.reason.empty()) {
                out += fmt::format("        why: {}\n", printable(match->site.reason));
            }
        }
    }
    for (const process::Skipped& one : report.skipped) {
        const std::string line = one.line_index < file.lines.size()
                                     ? fmt::format("{}:{}: ", printable(file.path),
                                                   file.lines[one.line_index].line_number)
                                     : std::string();
        out += fmt::format("{}skipped {}{}{}: {}\n", line, printable(one.path),
                           one.name.empty() ? "" : ":", printable(one.name), printable(one.reason));
    }
    return out;
}

std::string targets_line(const ListedFunction& function) {
    return exact_line("+", function.path,
                      function.demangled.empty() ? function.name : function.demangled);
}

std::string python_targets_line(const std::string& file, const std::string& name,
                                bool is_qualified) {
    return exact_line("", file, name, is_qualified ? "" : "*");
}

std::string targets_line(const engine::PythonMatch& function) {
    return exact_line("", function.module, function.name);
}

std::string list_text(const FunctionList& functions) {
    std::string out;
    size_t left_out = 0;
    // static functions, and the two halves of a constructor, share their name with others of a file
    std::set<std::string> seen;
    const auto add = [&](const std::string& line, const std::string& refusal) {
        left_out += line.empty();
        const std::string comment = fmt::format("# {}  ({})", line, printable(refusal));
        const std::string& text = refusal.empty() ? line : comment;
        if (!line.empty() && text.size() <= targets::kMaxLineBytes && seen.insert(text).second)
            out += text + "\n";
    };
    for (const ListedFunction& function : functions.native)
        add(targets_line(function), function.refusal);
    for (const engine::PythonMatch& function : functions.python) add(targets_line(function), "");
    if (left_out > 0)
        out += fmt::format("# {} more have names that no line can hold\n", show_count(left_out));
    return out;
}

std::string doctor_text(const std::vector<engine::Check>& checks, const Style& style) {
    std::string out;
    size_t name_width = 0;
    for (const engine::Check& check : checks) {
        name_width = std::max(name_width, display_width(printable(check.name)));
    }
    for (const engine::Check& check : checks) {
        const char* word = "unknown";
        Tone tone = Tone::kDim;
        switch (check.state) {
            case engine::Check::State::kGood:
                word = "ok";
                tone = Tone::kGood;
                break;
            case engine::Check::State::kDegraded:
                word = "degraded";
                tone = Tone::kWarning;
                break;
            case engine::Check::State::kBad:
                word = "missing";
                tone = Tone::kBad;
                break;
            case engine::Check::State::kUnknown:
                break;
        }
        const std::string name = printable(check.name);
        out += paint(style, tone, fmt::format("{:<8}", word)) + "  " + name +
               std::string(name_width - display_width(name), ' ') + "  " + printable(check.detail) +
               "\n";
        if (!check.remedy.empty()) {
            out += std::string(name_width + 12, ' ') + paint(style, Tone::kBold, "try: ") +
                   printable(check.remedy) + "\n";
        }
    }
    return out;
}

std::string calibrate_text(const std::vector<engine::CalibrationRow>& rows, const Style& style) {
    Table table({{"ENGINE"},
                 {"PROBE SITE"},
                 {"FLOOR", true},
                 {"SPREAD", true},
                 {"REQUESTED", true},
                 {"MEASURED", true},
                 {"ERROR", true},
                 {"SPREAD", true}});
    for (const engine::CalibrationRow& row : rows) {
        bool first = true;
        auto head = [&](std::vector<std::string> tail) {
            std::vector<std::string> cells;
            if (first) {
                cells = {printable(row.engine), site_kind_name(row.kind), show_time(row.floor),
                         show_time(row.floor_spread)};
            } else {
                cells = {"", "", "", ""};
            }
            cells.insert(cells.end(), tail.begin(), tail.end());
            table.add_row(cells);
            first = false;
        };
        if (row.accuracy.empty()) head({"", "", "", ""});
        for (const engine::CalibrationRow::Point& point : row.accuracy) {
            const nanoseconds error = point.measured - point.requested;
            head({show_time(point.requested), show_time(point.measured),
                  (error.count() > 0 ? "+" : "") + show_time(error), show_time(point.spread)});
        }
    }
    return table.render(style);
}

} // namespace speedbump::report
