// SPDX-License-Identifier: MIT
#include <nlohmann/json.hpp>
#include <string_view>

#include "report/experiment.h"

extern "C" {
extern const char sb_report_template[], sb_report_template_end[]; // assets.S
extern const char sb_report_chart[], sb_report_chart_end[];
}

namespace speedbump::report {

namespace {

using nlohmann::ordered_json;

// JSON inside a script element: nothing in it may end the element or begin a comment.
std::string for_script(const ordered_json& json) {
    const std::string text = json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    std::string safe;
    safe.reserve(text.size());
    for (const char character : text) {
        if (character == '<')
            safe += "\\u003c";
        else
            safe += character;
    }
    return safe;
}

void replace(std::string& text, std::string_view mark, std::string_view with) {
    if (const size_t at = text.find(mark); at != std::string::npos)
        text.replace(at, mark.size(), with);
}

} // namespace

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
    std::string page(sb_report_template, sb_report_template_end);
    replace(page, "@CHART@",
            std::string_view(sb_report_chart,
                             static_cast<size_t>(sb_report_chart_end - sb_report_chart)));
    replace(page, "@DATA@", for_script(data)); // last: it may hold any text
    return page;
}

} // namespace speedbump::report
