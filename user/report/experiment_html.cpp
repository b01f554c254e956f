// SPDX-License-Identifier: MIT
#include <nlohmann/json.hpp>

#include "report/experiment.h"
#include "report/page.h"

extern "C" {
extern const char sb_report_template[], sb_report_template_end[]; // assets.S
extern const char sb_report_chart[], sb_report_chart_end[];
}

namespace speedbump::report {

using nlohmann::ordered_json;

std::string experiment_html(const experiment::Document& document,
                            const experiment::Results& results) {
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
    const ordered_json data = {{"experiment", ordered_json::parse(experiment::to_json(document))},
                               {"plots", plots}};
    return fill_page({sb_report_template, sb_report_template_end},
                     {sb_report_chart, sb_report_chart_end}, data);
}

} // namespace speedbump::report
