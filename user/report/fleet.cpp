// SPDX-License-Identifier: MIT
#include "report/fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/times.h"
#include "util/text.h"
#include "util/units.h"

namespace speedbump::report {

namespace {

using experiment::Document;
using experiment::FleetHost;
using experiment::HostResult;
using experiment::TargetResult;

// Per call; "-" where there is none.
std::string slack_of(const TargetResult& result) {
    if (result.shape.shape != experiment::Shape::kHinge) return "-";
    const double calls = result.calls_per_unit > 0 ? result.calls_per_unit : 1;
    return fmt::format("{} +- {}", show_ns(result.shape.slack.value / calls),
                       show_ns(result.shape.slack.interval.half_width() / calls));
}

std::string host_line(const FleetHost& host, const Document& document) {
    const auto told = std::count(host.told.begin(), host.told.end(), true);
    std::string line = fmt::format("{}: clock {} ahead +- {}", printable(host.name),
                                   show_ns(static_cast<double>(host.clock_ahead.count())),
                                   show_ns(static_cast<double>(host.clock_error.count())));
    if (const size_t without = host.told.size() - static_cast<size_t>(told); without > 0)
        line += fmt::format("; no part of {} of {} slices", without, host.told.size());
    if (host.lost > 0)
        line += fmt::format("; {} more ({}) are left out, as it did not tell of them", host.lost,
                            show_ns(static_cast<double>(document.settings.slice.count()) *
                                    static_cast<double>(host.lost)));
    if (!host.ended.empty()) line += "; it ended early: " + printable(host.ended);
    return line + "\n";
}

} // namespace

std::string fleet_text(const Document& document, const experiment::Results& results,
                       const Style& style) {
    const experiment::Fleet& fleet = *document.fleet;
    Table table({{"BY HOST", false, true},
                 {"HOST", false, false},
                 {"CRITICALITY", true, false},
                 {"95% INTERVAL", true, false},
                 {"SLACK PER CALL", true, false},
                 {"VERDICT", false, false}});
    // Function by function.
    for (size_t target = 0; target < document.targets.size(); ++target)
        for (const HostResult& host : results.hosts)
            for (const TargetResult& one : host.targets) {
                if (one.target != target) continue;
                const auto& slope = one.shape.slope;
                const bool is_known = one.blocks > 0 && std::isfinite(slope.error);
                table.add_row({printable(document.targets[target].name),
                               printable(fleet.hosts[host.host].name),
                               is_known ? fmt::format("{:.3f}", slope.value) : "-",
                               is_known ? fmt::format("{:.3f} to {:.3f}", slope.interval.low,
                                                      slope.interval.high)
                                        : "-",
                               one.blocks > 0 ? slack_of(one) : "-", to_string(one.verdict)});
            }
    std::string text = "\n" + table.render(style);
    for (const FleetHost& host : fleet.hosts) text += host_line(host, document);
    text +=
        fmt::format("{} hosts, {}; slices began within {} of each other (the median; {} at most)\n",
                    fleet.hosts.size(), fleet.each ? "one slowed at a time" : "all slowed together",
                    show_time(fleet.apart), show_time(fleet.most_apart));
    return text;
}

} // namespace speedbump::report
