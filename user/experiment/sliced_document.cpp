// SPDX-License-Identifier: MIT
#include "experiment/sliced_document.h"

#include "experiment/document_json.h"

namespace speedbump::experiment {

using nlohmann::ordered_json;

namespace {

constexpr char kNotDrawn = '-';
// More than any that is switched: all slices of a file together are no longer than a time may be.
constexpr auto kLongestSlice = std::chrono::seconds(1);

// A letter for each slice: its level, 'a' being the smallest dose; a capital one has the dose.
std::string steps_text(const std::vector<Step>& steps) {
    std::string text;
    for (const Step& step : steps)
        text +=
            step.level == 0 ? kNotDrawn : static_cast<char>((step.on ? 'A' : 'a') + step.level - 1);
    return text;
}

std::vector<Step> read_steps(const std::string& text) {
    std::vector<Step> steps;
    for (const char letter : text) {
        if (letter == kNotDrawn) {
            steps.push_back({0, false});
            continue;
        }
        const bool on = letter >= 'A' && letter < static_cast<char>('A' + kLevels);
        const bool off = letter >= 'a' && letter < static_cast<char>('a' + kLevels);
        if (!on && !off) refuse("there is no step '" + std::string(1, letter) + "'");
        steps.push_back({static_cast<uint8_t>(letter - (on ? 'A' : 'a') + 1), on});
    }
    return steps;
}

} // namespace

std::vector<std::vector<uint64_t>> read_since(const ordered_json& json, const Document& document) {
    if (!json.contains("units_since_ns")) return {};
    auto since = read_rows(json.at("units_since_ns"), "units_since_ns");
    if (since.size() != document.progress.size())
        refuse("times of units are of another number of progress points than the document");
    return since;
}

ordered_json sliced_json(const Sliced& sliced) {
    ordered_json targets = ordered_json::array();
    for (const SlicedTarget& target : sliced.targets) {
        ordered_json& json = targets.emplace_back(ordered_json{{"dose_ns", target.dose.count()},
                                                               {"calls", target.calls},
                                                               {"steps", steps_text(target.steps)},
                                                               {"injected_ns", target.injected_ns},
                                                               {"delays", target.delays}});
        if (target.hosts != 1) json["hosts"] = target.hosts;
    }
    ordered_json json = {{"slice_ns", sliced.slice.count()},
                         {"waited_ns", sliced.waited.count()},
                         {"chance", sliced.chance},
                         {"units", sliced.units}};
    if (!sliced.since_ns.empty()) json["units_since_ns"] = sliced.since_ns;
    json["targets"] = targets;
    return json;
}

Sliced read_sliced(const ordered_json& json, const Document& document) {
    Sliced sliced;
    sliced.slice = read_time(json, "slice_ns", kLongestSlice);
    sliced.waited = read_time(json, "waited_ns");
    if (sliced.slice.count() == 0) refuse("slices without a length");
    if (json.contains("chance")) sliced.chance = json.at("chance").get<double>();
    if (!(sliced.chance > 0 && sliced.chance < 1)) refuse("a chance is between 0 and 1");
    sliced.units = read_rows(json.at("units"), "units");
    if (sliced.units.size() != document.progress.size())
        refuse("the slices have another number of progress points than the document");
    const auto check = [&sliced](size_t slices) {
        if (slices != sliced.slices()) refuse("a row of slices has another length than the first");
    };
    for (const auto& units : sliced.units) check(units.size());
    sliced.since_ns = read_since(json, document);
    for (const auto& since : sliced.since_ns) check(since.size());
    for (const ordered_json& target : json.at("targets")) {
        SlicedTarget& read = sliced.targets.emplace_back();
        read.dose = read_time(target, "dose_ns");
        read.calls = read_count(target.at("calls"), "calls");
        read.steps = read_steps(target.at("steps").get<std::string>());
        read.injected_ns = read_counts(target.at("injected_ns"), "injected_ns");
        read.delays = read_counts(target.at("delays"), "delays");
        if (target.contains("hosts")) read.hosts = target.at("hosts").get<double>();
        if (!(read.hosts >= 1)) refuse("a target is of no host");
        check(read.steps.size());
        check(read.injected_ns.size());
        check(read.delays.size());
    }
    if (sliced.targets.size() != document.targets.size())
        refuse("the slices have another number of targets than the document");
    return sliced;
}

} // namespace speedbump::experiment
