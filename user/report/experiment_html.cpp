// SPDX-License-Identifier: MIT
#include <nlohmann/json.hpp>

#include "experiment/history.h"
#include "report/experiment.h"
#include "report/page.h"

extern "C" {
extern const char sb_report_template[], sb_report_template_end[]; // assets.S
extern const char sb_report_chart[], sb_report_chart_end[];
}

namespace speedbump::report {

using nlohmann::ordered_json;

namespace {

constexpr size_t kHistoryParts = 10;

ordered_json plots_of(const experiment::Document& document, const experiment::Results& results) {
    ordered_json plots = ordered_json::array();
    for (const experiment::ProgressResult& progress : results.progress) {
        ordered_json by_target = ordered_json::object();
        for (const experiment::TargetResult& target : progress.targets) {
            ordered_json pairs = ordered_json::array();
            for (const experiment::Observation& one : target.observations)
                pairs.push_back({one.x, one.y});
            by_target[document.targets[target.target].name] = std::move(pairs);
        }
        plots.push_back(std::move(by_target));
    }
    return plots;
}

ordered_json data_of(const experiment::Document& document, const experiment::Results& results,
                     const std::string& experiment_json) {
    ordered_json noise = ordered_json::array();
    for (const experiment::Noise& one : experiment::noise_by_length(document))
        noise.push_back({{"seconds", one.seconds}, {"error", one.error}});
    return {{"experiment", ordered_json::parse(experiment_json)},
            {"plots", plots_of(document, results)},
            {"noise", noise},
            {"blocks", document.blocks.size()},
            {"slices", document.sliced ? document.sliced->slices() : 0}};
}

ordered_json history_of(const experiment::Document& document) {
    ordered_json history = ordered_json::array();
    for (const experiment::Moment& moment : experiment::history(document, kHistoryParts)) {
        ordered_json targets = ordered_json::object();
        for (const experiment::Known& known : moment.targets)
            targets[document.targets[known.target].name] = {
                {"value", known.criticality.value},
                {"low", known.criticality.interval.low},
                {"high", known.criticality.interval.high}};
        history.push_back({{"seconds", moment.seconds}, {"targets", targets}});
    }
    return history;
}

std::string page_with(const ordered_json& data) {
    return fill_page({sb_report_template, sb_report_template_end},
                     {sb_report_chart, sb_report_chart_end}, data);
}

} // namespace

std::string experiment_html(const experiment::Document& document,
                            const experiment::Results& results) {
    ordered_json data = data_of(document, results, experiment::to_json(document, results));
    data["history"] = history_of(document);
    return page_with(data);
}

std::string experiment_live_page() {
    std::string page = page_with(ordered_json::object());
    // This one may ask, and only where it came from.
    constexpr std::string_view kNothing = "default-src 'none';";
    page.insert(page.find(kNothing) + kNothing.size(), " connect-src 'self';");
    return page;
}

std::string experiment_live_data(const experiment::Document& document,
                                 const experiment::Results& results,
                                 const std::optional<Live>& live) {
    ordered_json data = data_of(document, results, experiment::summary_json(document, results));
    if (live)
        data["live"] = {{"elapsed_s", live->elapsed_s}, {"limit_s", live->limit_s}};
    else
        data["history"] = history_of(document);
    return data.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

} // namespace speedbump::report
