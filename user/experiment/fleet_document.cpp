// SPDX-License-Identifier: MIT
#include "experiment/fleet_document.h"

#include "experiment/document_json.h"
#include "experiment/sliced_document.h"

namespace speedbump::experiment {

using nlohmann::ordered_json;

namespace {

ordered_json host_json(const FleetHost& host) {
    uint64_t told = 0;
    for (const bool one : host.told) told += one;
    ordered_json json = {{"name", host.name},
                         {"launch", host.launch},
                         {"version", host.version},
                         {"kernel", host.kernel},
                         {"machine", host.machine},
                         {"clock_ahead_ns", host.clock_ahead.count()},
                         {"clock_error_ns", host.clock_error.count()},
                         {"slices", told},
                         {"lost_slices", host.lost}};
    if (!host.ended.empty()) json["ended"] = host.ended;
    return json;
}

ordered_json raw_json(const FleetHost& host) {
    ordered_json json = host_json(host);
    std::string told;
    for (const bool one : host.told) told += one ? '1' : '0';
    json["told"] = told;
    json["units"] = host.units;
    if (!host.since_ns.empty()) json["units_since_ns"] = host.since_ns;
    json["targets"] = ordered_json::array();
    for (const SlicedTarget& target : host.targets)
        json["targets"].push_back({{"calls", target.calls},
                                   {"injected_ns", target.injected_ns},
                                   {"delays", target.delays}});
    return json;
}

ordered_json fleet_with(const Fleet& fleet, ordered_json (*write)(const FleetHost&)) {
    ordered_json hosts = ordered_json::array();
    for (const FleetHost& host : fleet.hosts) hosts.push_back(write(host));
    return {{"where", fleet.each ? "each" : "all"},
            {"progress", fleet.progress},
            {"apart_ns", fleet.apart.count()},
            {"most_apart_ns", fleet.most_apart.count()},
            {"hosts", hosts}};
}

FleetHost read_host(const ordered_json& json, const Document& document) {
    const auto check = [&document](size_t slices) {
        if (slices != document.sliced->slices())
            refuse("a host has another number of slices than the document");
    };
    FleetHost host;
    host.name = json.at("name").get<std::string>();
    host.launch = json.at("launch").get<std::string>();
    host.version = json.at("version").get<std::string>();
    host.kernel = json.at("kernel").get<std::string>();
    host.machine = json.at("machine").get<std::string>();
    host.clock_ahead = std::chrono::nanoseconds(read_number(
        json.at("clock_ahead_ns"), "clock_ahead_ns", -kLongestTime.count(), kLongestTime.count()));
    host.clock_error = read_time(json, "clock_error_ns");
    host.lost = read_count(json.at("lost_slices"), "lost_slices");
    if (json.contains("ended")) host.ended = json.at("ended").get<std::string>();
    for (const char one : json.at("told").get<std::string>()) host.told.push_back(one == '1');
    check(host.told.size());
    host.units = read_rows(json.at("units"), "units");
    if (host.units.size() != document.progress.size())
        refuse("a host has another number of progress points than the document");
    for (const auto& units : host.units) check(units.size());
    host.since_ns = read_since(json, document);
    for (const auto& since : host.since_ns) check(since.size());
    for (const ordered_json& target : json.at("targets")) {
        SlicedTarget& read = host.targets.emplace_back();
        read.calls = read_count(target.at("calls"), "calls");
        read.injected_ns = read_counts(target.at("injected_ns"), "injected_ns");
        read.delays = read_counts(target.at("delays"), "delays");
        check(read.injected_ns.size());
        check(read.delays.size());
    }
    return host;
}

} // namespace

ordered_json fleet_json(const Fleet& fleet) {
    return fleet_with(fleet, raw_json);
}

ordered_json fleet_summary_json(const Fleet& fleet) {
    return fleet_with(fleet, host_json);
}

Fleet read_fleet(const ordered_json& json, const Document& document) {
    if (!document.sliced) refuse("a fleet without slices");
    Fleet fleet;
    const auto where = json.at("where").get<std::string>();
    if (where != "each" && where != "all") refuse("there is no '" + where + "' of hosts");
    fleet.each = where == "each";
    fleet.progress = json.at("progress").get<std::vector<std::string>>();
    if (fleet.progress.size() != document.progress.size())
        refuse("the fleet has another number of progress points than the document");
    fleet.apart = read_time(json, "apart_ns");
    fleet.most_apart = read_time(json, "most_apart_ns");
    for (const ordered_json& host : json.at("hosts"))
        fleet.hosts.push_back(read_host(host, document));
    const size_t hosts = fleet.hosts.size();
    const size_t targets = document.targets.size();
    if (hosts == 0) refuse("a fleet without a host");
    if (fleet.each && targets % hosts != 0) refuse("a fleet whose hosts have not the same targets");
    for (const FleetHost& host : fleet.hosts)
        if (host.targets.size() != (fleet.each ? targets / hosts : targets))
            refuse("a host has another number of targets than the document");
    return fleet;
}

void check_hosts_of_targets(const Document& document) {
    const size_t hosts = document.fleet ? document.fleet->hosts.size() : 0;
    for (const Target& target : document.targets)
        if (target.host && *target.host >= hosts) refuse("a target is of a host that there isn't");
}

std::string progress_name(const Document& document, size_t point) {
    const std::string& name = document.progress.at(point);
    return document.fleet ? document.fleet->progress.at(point) + ":" + name : name;
}

// --- a host by itself

std::optional<Document> document_of(const Document& document, size_t host) {
    const FleetHost& one = document.fleet->hosts[host];
    Document alone;
    alone.seed = document.seed;
    alone.settings = document.settings;
    alone.targets = document.targets;
    Sliced& sliced = alone.sliced.emplace();
    sliced.slice = document.sliced->slice;
    sliced.chance = document.sliced->chance;
    for (size_t target = 0; target < document.targets.size(); ++target) {
        sliced.targets.emplace_back().dose = document.sliced->targets[target].dose;
        sliced.targets.back().calls = one.targets[target].calls;
    }
    std::vector<size_t> points; // that ticked there
    for (size_t point = 0; point < document.progress.size(); ++point)
        for (const uint64_t units : one.units[point])
            if (units > 0) {
                points.push_back(point);
                break;
            }
    if (points.empty()) return std::nullopt;
    sliced.units.resize(points.size());
    if (!one.since_ns.empty()) sliced.since_ns.resize(points.size());
    for (const size_t point : points) alone.progress.push_back(document.progress[point]);
    for (size_t slice = 0; slice < one.told.size(); ++slice) {
        if (!one.told[slice]) continue;
        for (size_t i = 0; i < points.size(); ++i)
            sliced.units[i].push_back(one.units[points[i]][slice]);
        for (size_t i = 0; i < sliced.since_ns.size(); ++i)
            sliced.since_ns[i].push_back(one.since_ns[points[i]][slice]);
        for (size_t target = 0; target < document.targets.size(); ++target) {
            SlicedTarget& into = sliced.targets[target];
            into.steps.push_back(document.sliced->targets[target].steps[slice]);
            into.injected_ns.push_back(one.targets[target].injected_ns[slice]);
            into.delays.push_back(one.targets[target].delays[slice]);
        }
    }
    return alone;
}

} // namespace speedbump::experiment
