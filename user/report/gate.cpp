// SPDX-License-Identifier: MIT
#include "report/gate.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "report/times.h"
#include "util/text.h"
#include "util/units.h"

namespace speedbump::report {

namespace {

using experiment::Change;
using experiment::Changes;
using experiment::Judgement;

std::string show_interval(const Change& change) {
    if (!std::isfinite(change.change.error)) return "-";
    return fmt::format("{:+.2f} to {:+.2f}%", change.change.interval.low * 100,
                       change.change.interval.high * 100);
}

std::string name_of(const Change& change) {
    return change.progress + ": " + change.what;
}

std::string show_limit(double limit) {
    return fmt::format("{}%", std::round(limit * 1e6) / 1e4);
}

// One sentence on one figure.
std::string sentence(const Change& change, double limit) {
    const Judgement judgement = judge(change, limit);
    if (!std::isfinite(change.change.error))
        return name_of(change) + " is undecided: too little was measured";
    std::string size =
        fmt::format("{:+.2f}% (95%: {})", change.change.value * 100, show_interval(change));
    switch (judgement) {
        case Judgement::kWorse:
            return fmt::format("{} is worse by {:.2f}% (95%: {}); {} is allowed", name_of(change),
                               change.change.value * 100, show_interval(change), show_limit(limit));
        case Judgement::kUndecided:
            return fmt::format(
                "{} is undecided: {} excludes neither no change nor {}; some {:.0f} times as "
                "long would tell",
                name_of(change), size, show_limit(limit),
                std::ceil(std::max(2.0, times_longer(change, limit))));
        case Judgement::kNotWorse:
            return name_of(change) + " is not worse: " + size;
    }
    return size;
}

Tone tone_of(Judgement judgement) {
    switch (judgement) {
        case Judgement::kWorse:
            return Tone::kBad;
        case Judgement::kUndecided:
            return Tone::kWarning;
        case Judgement::kNotWorse:
            return Tone::kGood;
    }
    return Tone::kPlain;
}

std::string conclusion(const Changes& changes, double limit) {
    switch (judge(changes, limit)) {
        case Judgement::kWorse:
            return "worse: b takes " + show_limit(limit) + " longer than a, or more";
        case Judgement::kNotWorse:
            return "not worse: b does not take " + show_limit(limit) + " longer than a";
        case Judgement::kUndecided:
            return "undecided: whether b takes " + show_limit(limit) + " longer than a is open";
    }
    return {};
}

// Text for an XML attribute or element; printable() leaves nothing that XML cannot hold.
std::string xml(const std::string& text) {
    std::string result;
    for (const char character : printable(text)) switch (character) {
            case '<':
                result += "&lt;";
                break;
            case '>':
                result += "&gt;";
                break;
            case '&':
                result += "&amp;";
                break;
            case '"':
                result += "&quot;";
                break;
            default:
                result += character;
        }
    return result;
}

nlohmann::ordered_json change_json(const Change& change) {
    const auto& estimate = change.change;
    return {{"progress", change.progress},
            {"what", change.what},
            {"a_ns", change.a},
            {"b_ns", change.b},
            {"change",
             {{"value", estimate.value},
              {"low", estimate.interval.low},
              {"high", estimate.interval.high}}},
            {"p_corrected", change.p}};
}

} // namespace

std::string gate_text(const Changes& changes, std::optional<double> limit, const Style& style) {
    Table table({{"PROGRESS", false, true},
                 {"", false, false},
                 {"A", true, false},
                 {"B", true, false},
                 {"CHANGE", true, false},
                 {"95% INTERVAL", true, false}});
    for (const Change& change : changes.changes) {
        const bool is_known = std::isfinite(change.change.error);
        table.add_row({printable(change.progress), change.what, show_ns(change.a),
                       show_ns(change.b),
                       is_known ? fmt::format("{:+.2f}%", change.change.value * 100) : "-",
                       show_interval(change)});
    }
    std::string text = table.render(style);
    for (const std::string& note : changes.notes)
        text += paint(style, Tone::kWarning, "note: ") + printable(note) + "\n";
    if (!limit) return text;
    for (const std::string& doubt : changes.doubts)
        text += paint(style, Tone::kBad, "doubt: ") + printable(doubt) + "\n";
    for (const Change& change : changes.changes) {
        const Judgement judgement = judge(change, *limit);
        if (judgement != Judgement::kNotWorse)
            text += paint(style, tone_of(judgement), printable(sentence(change, *limit))) + "\n";
    }
    return text + paint(style, tone_of(judge(changes, *limit)), conclusion(changes, *limit)) + "\n";
}

void add_gate_json(nlohmann::ordered_json& json, const Changes& changes,
                   std::optional<double> limit) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Change& change : changes.changes) {
        list.push_back(change_json(change));
        if (limit) list.back()["judgement"] = to_string(judge(change, *limit));
    }
    json["changes"] = std::move(list);
    json["notes"] = changes.notes;
    json["doubts"] = changes.doubts;
    if (!limit) return;
    json["limit"] = *limit;
    json["judgement"] = to_string(judge(changes, *limit));
}

std::string gate_junit(const Changes& changes, double limit, const std::string& suite) {
    std::string cases;
    size_t count = 0, failures = 0, skipped = 0;
    const auto add = [&](const std::string& name, Judgement judgement, const std::string& message) {
        ++count;
        cases += fmt::format("    <testcase classname=\"{}\" name=\"{}\" time=\"0\">\n", xml(suite),
                             xml(name));
        if (judgement == Judgement::kWorse) {
            ++failures;
            cases += fmt::format("      <failure type=\"worse\" message=\"{0}\">{0}</failure>\n",
                                 xml(message));
        } else if (judgement == Judgement::kUndecided) {
            ++skipped;
            cases += fmt::format("      <skipped message=\"{}\"/>\n", xml(message));
        } else {
            cases += fmt::format("      <system-out>{}</system-out>\n", xml(message));
        }
        cases += "    </testcase>\n";
    };
    // What is doubted as a whole must not look like a failure or a success.
    const bool is_doubted = !changes.doubts.empty();
    for (const Change& change : changes.changes)
        add(name_of(change), is_doubted ? Judgement::kUndecided : judge(change, limit),
            is_doubted ? changes.doubts.front() : sentence(change, limit));
    const std::string totals = fmt::format(
        "tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"{}\"", count, failures, skipped);
    return fmt::format(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {0}>\n"
        "  <testsuite name=\"{1}\" {0} time=\"0\">\n{2}  </testsuite>\n</testsuites>\n",
        totals, xml(suite), cases);
}

} // namespace speedbump::report
