// SPDX-License-Identifier: MIT
#include "report/pair.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "report/gate.h"
#include "util/text.h"
#include "util/units.h"

namespace speedbump::report {

namespace {

using experiment::kSideA;
using experiment::kSideB;
using experiment::PairDocument;
using nlohmann::ordered_json;

// [units of a, ns of a, units of b, ns of b] for each progress point.
ordered_json slice_json(const experiment::PairSlice& slice) {
    ordered_json points = ordered_json::array();
    for (const auto& both : slice.progress) {
        ordered_json point = ordered_json::array();
        for (const experiment::Stretch& one : both) {
            point.push_back(std::llround(one.units));
            point.push_back(std::llround(one.time));
        }
        points.push_back(std::move(point));
    }
    return {{"start_ns", slice.start.count()}, {"progress", std::move(points)}};
}

} // namespace

std::string pair_text(const PairDocument& document, const experiment::Changes& changes,
                      std::optional<double> limit, const Style& style) {
    std::string text;
    for (const auto side : {kSideA, kSideB})
        text += fmt::format("{}: {} (process {})\n", side == kSideA ? "a" : "b",
                            printable(document.programs[side]), document.pids[side]);
    text += gate_text(changes, limit, style);
    return text + fmt::format("{} slices of {}, side by side; ended by: {}\n",
                              document.slices.size(), show_time(document.slice),
                              printable(document.stopped));
}

std::string pair_progress(const PairDocument& document) {
    const experiment::Estimate change = change_so_far(document);
    std::string text = fmt::format("{} s", document.beats.size());
    if (std::isfinite(change.interval.low) && std::isfinite(change.interval.high))
        text +=
            fmt::format(": a unit takes {:+.2f}% longer in b ({:+.2f} to {:+.2f}%)",
                        change.value * 100, change.interval.low * 100, change.interval.high * 100);
    return text + "\n";
}

std::string pair_json(const PairDocument& document, const experiment::Changes& changes,
                      std::optional<double> limit) {
    ordered_json json = {{"schema", "speedbump/ab/1"},
                         {"version", document.version},
                         {"host", document.host},
                         {"kernel", document.kernel},
                         {"machine", document.machine},
                         {"started_unix_ns", document.started_unix_ns},
                         {"pids", document.pids},
                         {"programs", document.programs},
                         {"slice_ns", document.slice.count()},
                         {"precision", document.precision},
                         {"progress", document.progress},
                         {"waited", document.waited},
                         {"ran", document.ran},
                         {"tool_cpu", document.tool_cpu},
                         {"stopped", document.stopped},
                         {"complete", document.complete}};
    add_gate_json(json, changes, limit);
    ordered_json slices = ordered_json::array();
    for (const experiment::PairSlice& slice : document.slices) slices.push_back(slice_json(slice));
    json["slices"] = std::move(slices);
    return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

} // namespace speedbump::report
