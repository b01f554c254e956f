// SPDX-License-Identifier: MIT
#include "report/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "report/device.h"
#include "report/fleet.h"
#include "report/gate.h"
#include "report/times.h"
#include "targets/parser.h"
#include "util/text.h"
#include "util/units.h"

namespace speedbump::report {

namespace {

using experiment::Document;
using experiment::Estimate;
using experiment::ProgressResult;
using experiment::Results;
using experiment::Shape;
using experiment::TargetResult;
using experiment::Verdict;
using std::chrono::nanoseconds;

std::string show_signed_ns(double ns) {
    return (ns > 0 ? "+" : "") + show_ns(ns);
}

std::string show_share_of(const Estimate& estimate, double whole) {
    return fmt::format("{:+.2f}% (95%: {:+.2f} to {:+.2f}%)", estimate.value / whole * 100,
                       estimate.interval.low / whole * 100, estimate.interval.high / whole * 100);
}

std::string show_interval(const Estimate& estimate) {
    if (!std::isfinite(estimate.error)) return "-";
    return fmt::format("{:.3f} to {:.3f}", estimate.interval.low, estimate.interval.high);
}

// Of what should be 0: how often chance alone takes it as far away, where that is seldom.
std::string by_chance(const Estimate& estimate) {
    return estimate.interval.contains(0) ? "" : fmt::format(", p = {:.1g}", estimate.p);
}

Tone tone_of(Verdict verdict) {
    switch (verdict) {
        case Verdict::kMatters:
            return Tone::kBad;
        case Verdict::kHidden:
            return Tone::kGood;
        case Verdict::kUncertain:
            return Tone::kWarning;
        case Verdict::kUnknown:
            return Tone::kDim;
    }
    return Tone::kPlain;
}

// "absorbs 14.0 us +- 3.0 us per call, then matters".
std::string slack_text(const TargetResult& result) {
    const double calls = result.calls_per_unit > 0 ? result.calls_per_unit : 1;
    const Estimate& slack = result.shape.slack;
    return fmt::format("{} {} +- {} per call{}",
                       result.verdict == Verdict::kHidden ? "absorbs" : "may absorb",
                       show_ns(slack.value / calls), show_ns(slack.interval.half_width() / calls),
                       result.verdict == Verdict::kHidden ? ", then matters" : "");
}

std::string gain_text(const TargetResult& result, double period) {
    if (result.verdict == Verdict::kUncertain) return "not known yet";
    if (result.shape.shape == Shape::kHinge) return "none: within the slack";
    if (result.shape.shape == Shape::kFlat) return "none";
    if (!result.gain) return "not known yet";
    // The period of one unit cannot shrink by more than there is.
    return fmt::format("{} ({:+.2f}%)", show_signed_ns(-result.gain->value),
                       -result.gain->value / period * 100);
}

// What the interval that was asked for would take.
std::string wanted_text(const TargetResult& result, const Document& document) {
    if (!document.sliced)
        return fmt::format("some {} blocks for the interval that was asked for, {} were measured",
                           result.blocks_wanted, result.blocks);
    const nanoseconds measured =
        document.sliced->slice * static_cast<int64_t>(document.sliced->slices());
    const double factor =
        static_cast<double>(result.blocks_wanted) / static_cast<double>(result.blocks);
    return fmt::format("some {} for the interval that was asked for, {} were measured",
                       show_ns(static_cast<double>(measured.count()) * factor),
                       show_time(measured));
}

void add_progress(std::string& text, const Document& document, const ProgressResult& progress,
                  const Style& style) {
    const std::string name = printable(document.progress[progress.progress]);
    text += paint(style, Tone::kBold, name);
    if (progress.period > 0)
        text += fmt::format(": {} per s, {} each", show_rate(1e9 / progress.period),
                            show_ns(progress.period));
    text += "\n";
    Table table({{"TARGET", false, true},
                 {"CRITICALITY", true, false},
                 {"95% INTERVAL", true, false},
                 {"SHAPE", false, false},
                 {"VERDICT", false, false},
                 {"1 US LESS PER CALL", true, false},
                 {"CALLS/UNIT", true, false}});
    for (const TargetResult& result : progress.targets) {
        const experiment::Target& target = document.targets[result.target];
        std::string title = printable(target.name);
        if (target.role == experiment::Role::kPositive) title += " (control)";
        if (result.blocks == 0) {
            table.add_row({title, "-", "-", "-", paint(style, Tone::kDim, "unknown"), "-",
                           show_rate(result.calls_per_unit)});
            continue;
        }
        table.add_row({title, fmt::format("{:.3f}", result.shape.slope.value),
                       show_interval(result.shape.slope), to_string(result.shape.shape),
                       paint(style, tone_of(result.verdict), to_string(result.verdict)),
                       gain_text(result, progress.period), show_rate(result.calls_per_unit)});
    }
    text += table.render(style);
    for (const TargetResult& result : progress.targets) {
        const std::string title = printable(document.targets[result.target].name);
        if (result.shape.shape == Shape::kHinge)
            text += fmt::format("{}: {}\n", title, slack_text(result));
        if (result.confirmed)
            text += fmt::format("{}: {:.3f} ({}) on fresh blocks\n", title, result.confirmed->value,
                                show_interval(*result.confirmed));
        if (result.blocks_wanted > 0)
            text += fmt::format("{}: {}\n", title, wanted_text(result, document));
    }
    for (const auto& [first, second] : progress.pairs)
        text += fmt::format(
            "{} and {}: a delay of one changes what one of the other does; each "
            "criticality is that of small delays\n",
            printable(document.targets[first].name), printable(document.targets[second].name));
    if (progress.arrives_within > 0)
        text += fmt::format(
            "an effect arrives within {}{}\n",
            show_time(document.settings.slice * static_cast<int64_t>(progress.arrives_within)),
            progress.arrives_later
                ? ", or later, which is not counted: take longer slices, as by --slice=3s"
                : "");
    if (progress.looking && progress.period > 0)
        text += "cost of looking: " + show_share_of(*progress.looking, progress.period) +
                " of the period\n";
    if (progress.sham)
        text += fmt::format("sham target: {:.3f} ({}){}\n", progress.sham->value,
                            show_interval(*progress.sham), by_chance(*progress.sham));
    if (progress.latencies.empty()) return;
    Table latencies({{"CALLS TAKE WITH", false, true},
                     {"P50", true, false},
                     {"P90", true, false},
                     {"P99", true, false}});
    for (const experiment::LatencyRow& row : progress.latencies) {
        std::string arm = to_string(row.arm.kind);
        if (row.arm.kind == experiment::ArmKind::kDose)
            arm = printable(document.targets[row.arm.target].name) + " " +
                  targets::format_duration(row.arm.delay);
        latencies.add_row({arm, show_time(row.latency.p50), show_time(row.latency.p90),
                           show_time(row.latency.p99)});
    }
    text += latencies.render(style);
}

// How --bisect came to the targets.
void add_rungs(std::string& text, const Document& document, const Style& style) {
    for (size_t number = 0; number < document.rungs.size(); ++number) {
        const experiment::Rung& rung = document.rungs[number];
        const Results results = experiment::analyse(document_of(document, rung));
        text += "\n" + paint(style, Tone::kBold, fmt::format("bisect, rung {}", number + 1)) + "\n";
        Table table({{"GROUP", false, true},
                     {"FUNCTIONS", true, false},
                     {"CRITICALITY", true, false},
                     {"95% INTERVAL", true, false},
                     {"VERDICT", false, false},
                     {"CALLS/UNIT", true, false},
                     {"", false, false}});
        for (const TargetResult& result : results.progress[0].targets) {
            const experiment::Target& group = rung.targets[result.target];
            const bool is_followed = std::find(rung.followed.begin(), rung.followed.end(),
                                               result.target) != rung.followed.end();
            const bool has_slope = result.blocks > 0;
            table.add_row({printable(group.name), std::to_string(group.function_count),
                           has_slope ? fmt::format("{:.3f}", result.shape.slope.value) : "-",
                           has_slope ? show_interval(result.shape.slope) : "-",
                           paint(style, tone_of(result.verdict), to_string(result.verdict)),
                           show_rate(result.calls_per_unit), is_followed ? "taken apart" : ""});
        }
        text += table.render(style);
        for (const experiment::Target& group : rung.targets)
            for (const std::string& note : group.notes)
                text += printable(group.name) + ": " + printable(note) + "\n";
        for (const std::string& note : rung.notes) text += printable(note) + "\n";
    }
}

nlohmann::ordered_json estimate_json(const Estimate& estimate) {
    return {{"value", estimate.value},
            {"low", estimate.interval.low},
            {"high", estimate.interval.high}};
}

} // namespace

std::string experiment_table(const Document& document, const Results& results, const Style& style) {
    std::string text;
    for (const ProgressResult& progress : results.progress) {
        if (!text.empty()) text += "\n";
        add_progress(text, document, progress, style);
    }
    for (const experiment::DeviceResult& device : results.devices)
        text += device_text(document, device, style);
    if (document.fleet) text += fleet_text(document, results, style) + "\n";
    if (!document.rungs.empty()) {
        add_rungs(text, document, style);
        text += "\n";
    }
    for (const experiment::Target& target : document.targets)
        for (const std::string& note : target.notes)
            text += printable(target.name) + ": " + printable(note) + "\n";
    for (const std::string& warning : document.warnings)
        text += paint(style, Tone::kWarning, "note: ") + printable(warning) + "\n";
    size_t slices = 0;
    for (const experiment::Block& block : document.blocks) slices += block.slices.size();
    if (document.sliced)
        text += fmt::format("{} slices of {}, all targets at once; ", document.sliced->slices(),
                            show_time(document.sliced->slice));
    else
        text += fmt::format("{} blocks, {} slices of {}, ", document.blocks.size(), slices,
                            show_time(document.settings.slice));
    text += fmt::format("seed {}, engine {}; ended by: {}\n", document.seed,
                        printable(document.engine), printable(document.stopped));
    for (const std::string& why : results.invalid_because)
        text += paint(style, Tone::kBad, "INVALID: ") + printable(why) + "\n";
    return text;
}

std::string experiment_progress(const Document& document, const Results& results) {
    std::string text = document.sliced ? fmt::format("slice {}", document.sliced->slices())
                                       : fmt::format("block {}", document.blocks.size());
    if (results.progress.empty()) return text + "\n";
    for (const TargetResult& result : results.progress[0].targets) {
        if (result.blocks == 0) continue;
        text += fmt::format("  {}: {:.2f}", printable(document.targets[result.target].name),
                            result.shape.slope.value);
        if (std::isfinite(result.shape.slope.error))
            text += fmt::format(" +- {:.2f}", result.shape.slope.interval.half_width());
        if (text.size() > 100) break;
    }
    return text + "\n";
}

std::string comparison_table(const experiment::Comparison& comparison, const Style& style) {
    std::string text = fmt::format("{}: {} each in a, {} in b\n", printable(comparison.progress),
                                   show_ns(comparison.period_a), show_ns(comparison.period_b));
    Table table({{"TARGET", false, true},
                 {"A", true, false},
                 {"B", true, false},
                 {"B - A", true, false},
                 {"95% INTERVAL", true, false},
                 {"", false, false}});
    for (const experiment::ComparedTarget& target : comparison.targets) {
        const bool is_known = std::isfinite(target.difference.error);
        table.add_row({printable(target.name), fmt::format("{:.3f}", target.a.value),
                       fmt::format("{:.3f}", target.b.value),
                       is_known ? fmt::format("{:+.3f}", target.difference.value) : "-",
                       show_interval(target.difference),
                       !is_known         ? "not known"
                       : target.p < 0.05 ? paint(style, Tone::kBad, "differs")
                                         : "no difference"});
    }
    text += table.render(style);
    for (const std::string& name : comparison.only_a)
        text += "only in a: " + printable(name) + "\n";
    for (const std::string& name : comparison.only_b)
        text += "only in b: " + printable(name) + "\n";
    return text;
}

std::string comparison_json(const experiment::Comparison& comparison,
                            const experiment::Changes& changes, std::optional<double> limit) {
    nlohmann::ordered_json targets = nlohmann::ordered_json::array();
    for (const experiment::ComparedTarget& target : comparison.targets)
        targets.push_back({{"name", target.name},
                           {"a", estimate_json(target.a)},
                           {"b", estimate_json(target.b)},
                           {"difference", estimate_json(target.difference)},
                           {"p_corrected", target.p},
                           {"differs", target.p < 0.05}});
    nlohmann::ordered_json json = {{"schema", "speedbump/compare/1"},
                                   {"progress", comparison.progress},
                                   {"period_a_ns", comparison.period_a},
                                   {"period_b_ns", comparison.period_b},
                                   {"targets", targets},
                                   {"only_a", comparison.only_a},
                                   {"only_b", comparison.only_b}};
    add_gate_json(json, changes, limit);
    return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

} // namespace speedbump::report
