// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "experiment/analysis.h"
#include "experiment/document.h"
#include "report/discovery.h"
#include "report/experiment.h"

namespace speedbump::experiment {

// How often a document is taken of which one value became another, of each kind and size. What is
// taken must be fit for all that reads it.
inline size_t taken_when_changed(const nlohmann::json& whole) {
    const auto parts = whole.flatten();
    std::set<std::string> places;
    for (const auto& [place, value] : parts.items())
        for (std::string at = place; !at.empty(); at.resize(at.rfind('/'))) places.insert(at);
    size_t taken = 0;
    for (const std::string& place : places)
        for (const char* other : {"[]", "{}", "\"\"", "null", "-1", "0", "1e300", "[[]]", "true",
                                  "9223372036854775807", "18446744073709551615"}) {
            auto json = whole;
            json[nlohmann::json::json_pointer(place)] = nlohmann::json::parse(other);
            const auto document = from_json(json.dump(), "x");
            if (!document) continue;
            ++taken;
            const Results results = analyse(*document);
            report::experiment_table(*document, results, {});
            report::experiment_html(*document, results);
            report::discovery_html({}, {}, report::Measured{*document, "x"});
        }
    return taken;
}

} // namespace speedbump::experiment
