// SPDX-License-Identifier: MIT
#include "experiment/device_document.h"

#include "experiment/document_json.h"

namespace speedbump::experiment {

namespace {

using nlohmann::ordered_json;

// One list for both ways.
struct Count {
    const char* key;
    uint64_t DeviceReading::*field;
};
constexpr Count kCounts[] = {{"launches", &DeviceReading::launches},
                             {"waits", &DeviceReading::waits},
                             {"gaps", &DeviceReading::gaps},
                             {"most_queued", &DeviceReading::most_queued}};
struct Time {
    const char* key;
    nanoseconds DeviceReading::*field;
};
constexpr Time kTimes[] = {
    {"wait_ns", &DeviceReading::wait},       {"launching_ns", &DeviceReading::launching},
    {"held_ns", &DeviceReading::held},       {"unsure_ns", &DeviceReading::unsure},
    {"watched_ns", &DeviceReading::watched}, {"idle_ns", &DeviceReading::idle},
    {"busy_ns", &DeviceReading::busy}};

} // namespace

ordered_json device_json(const DeviceReading& reading) {
    ordered_json json;
    for (const Count& one : kCounts) json[one.key] = reading.*one.field;
    for (const Time& one : kTimes) json[one.key] = (reading.*one.field).count();
    return json;
}

DeviceReading read_device(const ordered_json& json) {
    DeviceReading reading;
    for (const Count& one : kCounts) reading.*one.field = read_count(json.at(one.key), one.key);
    for (const Time& one : kTimes) reading.*one.field = read_time(json, one.key);
    return reading;
}

ordered_json device_result_json(const DeviceResult& result, const Document& document) {
    const auto interval = [](const Interval& share) {
        return ordered_json{{"low", share.low}, {"high", share.high}};
    };
    return {{"name", document.progress[result.progress]},
            {"verdict", to_string(result.verdict)},
            {"slices", result.slices},
            {"unit_ns", result.unit},
            {"launches_per_unit", result.launches},
            {"waits_per_unit", result.waits},
            {"wait_ns", result.wait},
            {"held_ns", result.held},
            {"unsure_ns", result.unsure},
            {"idle_ns", result.idle},
            {"unseen_ns", result.unseen},
            {"waiting", interval(result.waiting)},
            {"idle", interval(result.idling)},
            {"most_queued", result.most_queued},
            {"notes", result.notes}};
}

} // namespace speedbump::experiment
