// SPDX-License-Identifier: MIT
#include "report/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "report/json_parts.h"
#include "report/text.h"
#include "util/text.h"

namespace speedbump::report {

using nlohmann::ordered_json;

std::string to_line(const ordered_json& document) {
    return document.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string shown_json(std::string_view json) {
    std::string shown;
    shown.reserve(json.size());
    for (size_t at = 0; at < json.size();) {
        const Character character = decode_character(json, at);
        const std::string_view bytes = json.substr(at, character.bytes);
        at += character.bytes;
        if (character.code < 0x7f || printable(bytes) == bytes)
            shown += bytes;
        else // no more than 16 bits: printable() escapes none beyond, and no byte is invalid here
            shown += fmt::format("\\u{:04x}", std::min<uint32_t>(character.code, 0xfffd));
    }
    return shown;
}

ordered_json document_head(const Context& context, const std::string& schema) {
    ordered_json document = {{"schema", schema},           {"command", context.command},
                             {"version", context.version}, {"host", context.host},
                             {"kernel", context.kernel},   {"machine", context.machine}};
    if (!context.engine.empty()) document["engine"] = context.engine;
    return document;
}

namespace {

int64_t unix_ns(std::chrono::system_clock::time_point time) {
    return std::chrono::duration_cast<nanoseconds>(time.time_since_epoch()).count();
}

const char* engine_name(session::EngineChoice choice) {
    switch (choice) {
        case session::EngineChoice::kAuto:
            return "auto";
        case session::EngineChoice::kBpf:
            return "bpf";
        case session::EngineChoice::kKmod:
            return "kmod";
        case session::EngineChoice::kInprocess:
            return "inprocess";
    }
    return "auto";
}

const char* missing_name(session::MissingPolicy policy) {
    switch (policy) {
        case session::MissingPolicy::kError:
            return "error";
        case session::MissingPolicy::kWarn:
            return "warn";
        case session::MissingPolicy::kIgnore:
            return "ignore";
    }
    return "warn";
}

const char* runtime_name(targets::Runtime runtime) {
    return runtime == targets::Runtime::kPython ? "python" : "native";
}

ordered_json options_json(const session::SessionOptions& options) {
    ordered_json document = {{"pids", options.pids},
                             {"children", options.follow_children},
                             {"engine", engine_name(options.engine)},
                             {"missing", missing_name(options.missing)},
                             {"paused", options.start_paused}};
    if (options.cgroup) document["cgroup"] = *options.cgroup;
    if (options.defaults.delay) document["delay_ns"] = options.defaults.delay->count();
    if (options.defaults.every) document["every"] = *options.defaults.every;
    if (options.defaults.start) document["start_ns"] = options.defaults.start->count();
    if (options.defaults.duration) document["duration_ns"] = options.defaults.duration->count();
    return document;
}

ordered_json totals_json(const Totals& totals) {
    return {{"calls", totals.hits},
            {"delays", totals.delays},
            {"requested_ns", totals.requested.count()},
            {"measured_ns", totals.measured.count()}};
}

size_t line_number(const TargetsFile& file, size_t index) {
    return index < file.lines.size() ? file.lines[index].line_number : 0;
}

ordered_json site_json(const elf::ProbeSite& site) {
    return {{"file_offset", site.file_offset},
            {"kind", site_kind_name(site.kind)},
            {"instruction", site.instruction},
            {"reason", site.reason}};
}

ordered_json settings_json(const engine::TargetSettings& settings) {
    ordered_json document = {{"delay_ns", settings.delay.count()},
                             {"every", settings.every},
                             {"start_ns", settings.start.count()},
                             {"duration_ns", settings.duration.count()},
                             {"mode", settings.mode == targets::Mode::kSleep ? "sleep" : "spin"}};
    if (settings.caller) document["caller"] = settings.caller->text;
    if (settings.thread) document["thread"] = settings.thread->text;
    return document;
}

ordered_json lost_json(const Snapshot& snapshot) {
    return {{"events", snapshot.lost_events},
            {"counts", snapshot.lost_counts},
            {"members", snapshot.lost_members}};
}

ordered_json processes_json(const Snapshot& snapshot) {
    ordered_json list = ordered_json::array();
    for (const session::ProcessInfo& process : snapshot.processes) {
        list.push_back(
            {{"pid", process.pid}, {"command", process.command}, {"alive", process.alive}});
    }
    return list;
}

const char* line_state_name(LineState state) {
    switch (state) {
        case LineState::kMatched:
            return "matched";
        case LineState::kRefused:
            return "refused";
        case LineState::kUnmatched:
            return "unmatched";
        case LineState::kNotLookedAt:
            return "not-looked-at";
        case LineState::kPython:
            return "python";
        case LineState::kExclusion:
            return "exclusion";
    }
    return "unmatched";
}

const char* check_state_name(engine::Check::State state) {
    switch (state) {
        case engine::Check::State::kGood:
            return "good";
        case engine::Check::State::kDegraded:
            return "degraded";
        case engine::Check::State::kBad:
            return "bad";
        case engine::Check::State::kUnknown:
            return "unknown";
    }
    return "unknown";
}

// What has happened so far: of each target, in each process.
void add_outcome(ordered_json& document, const session::SessionOptions& options,
                 const Snapshot& snapshot, const TargetsFile& file) {
    document["since_armed_ns"] = snapshot.since_armed.count();
    document["options"] = options_json(options);
    document["targets_file"] = file.path;
    document["processes"] = processes_json(snapshot);
    const std::vector<Totals> totals = totals_by_target(snapshot);
    std::map<uint32_t, std::vector<const engine::Counts*>> by_target;
    for (const engine::Counts& counts : snapshot.counts) {
        by_target[counts.target].push_back(&counts);
    }
    document["all"] = totals_json(total(totals));
    ordered_json list = ordered_json::array();
    for (size_t i = 0; i < totals.size(); i++) {
        const session::Target& target = snapshot.targets[i];
        ordered_json one = {{"index", i},
                            {"world", runtime_name(target.runtime)},
                            {"container", target.container},
                            {"name", target.name},
                            {"line", line_number(file, target.line_index)}};
        one.update(settings_json(target.settings));
        one.update(totals_json(totals[i]));
        ordered_json processes = ordered_json::array();
        for (const engine::Counts* counts : by_target[static_cast<uint32_t>(i)]) {
            ordered_json row = {{"pid", counts->process}};
            row.update(totals_json(
                Totals{counts->hits, counts->delays, counts->requested, counts->measured}));
            processes.push_back(std::move(row));
        }
        one["processes"] = std::move(processes);
        list.push_back(std::move(one));
    }
    document["targets"] = std::move(list);
    document["counts_are_old"] = snapshot.counts_are_old;
    document["late_files"] = snapshot.late_files;
    document["lost"] = lost_json(snapshot);
}

} // namespace

std::string attach_matched_json(const Context& context, const session::SessionOptions& options,
                                const Snapshot& snapshot, const TargetsFile& file) {
    ordered_json document = document_head(context, "speedbump/attach/1");
    document["type"] = "matched";
    document["time_unix_ns"] = unix_ns(snapshot.taken_at);
    document["options"] = options_json(options);
    document["targets_file"] = file.path;
    document["processes"] = processes_json(snapshot);
    ordered_json list = ordered_json::array();
    for (size_t i = 0; i < snapshot.targets.size(); i++) {
        const session::Target& target = snapshot.targets[i];
        ordered_json one = {{"index", i},
                            {"world", runtime_name(target.runtime)},
                            {"container", target.container},
                            {"name", target.name},
                            {"line", line_number(file, target.line_index)}};
        one.update(settings_json(target.settings));
        if (target.runtime == targets::Runtime::kNative) {
            one["entry_offset"] = target.entry_offset;
            one["site"] = site_json(target.site);
        }
        one["below_floor"] = target.below_floor;
        list.push_back(std::move(one));
    }
    document["targets"] = std::move(list);
    ordered_json skipped = ordered_json::array();
    for (const session::SkippedTarget& one : snapshot.skipped) {
        ordered_json entry = {{"container", one.container}, {"name", one.name}};
        if (one.line_index) entry["line"] = line_number(file, *one.line_index);
        entry["reason"] = one.reason;
        skipped.push_back(std::move(entry));
    }
    document["skipped"] = std::move(skipped);
    ordered_json unmatched = ordered_json::array();
    for (const size_t index : snapshot.unmatched_lines) {
        unmatched.push_back(line_number(file, index));
    }
    document["unmatched_lines"] = std::move(unmatched);
    ordered_json floors = ordered_json::object();
    for (const auto kind :
         {elf::SiteKind::kOptimizedNop, elf::SiteKind::kEmulated, elf::SiteKind::kSingleStep}) {
        floors[site_kind_name(kind)] = snapshot.floors.by_kind[static_cast<size_t>(kind)].count();
    }
    document["floors_ns"] = std::move(floors);
    return to_line(document);
}

std::string attach_sample_json(const Snapshot& before, const Snapshot& now,
                               const TargetsFile& file) {
    const ActivityReport report = compare(before, now);
    ordered_json document = {
        {"schema", "speedbump/attach/1"},         {"type", "sample"},
        {"time_unix_ns", unix_ns(now.taken_at)},  {"since_armed_ns", now.since_armed.count()},
        {"interval_ns", report.interval.count()}, {"armed", now.armed}};
    document["processes"] = std::count_if(now.processes.begin(), now.processes.end(),
                                          [](const auto& process) { return process.alive; });
    auto activity_json = [](const Activity& activity) {
        ordered_json one = totals_json(activity.since_armed);
        one["calls_per_second"] = activity.calls_per_second;
        one["delays_per_second"] = activity.delays_per_second;
        one["cpu_share"] = activity.cpu_share;
        return one;
    };
    document["all"] = activity_json(report.all);
    ordered_json list = ordered_json::array();
    for (const Activity& activity : report.targets) {
        const session::Target& target = now.targets[activity.target_index];
        ordered_json one = {{"index", activity.target_index},
                            {"container", target.container},
                            {"name", target.name},
                            {"line", line_number(file, target.line_index)}};
        one.update(activity_json(activity));
        list.push_back(std::move(one));
    }
    document["targets"] = std::move(list);
    document["counts_are_old"] = now.counts_are_old;
    document["lost"] = lost_json(now);
    return to_line(document);
}

std::string attach_final_json(const Context& context, const session::SessionOptions& options,
                              const Snapshot& snapshot, const TargetsFile& file,
                              const std::string& reason) {
    ordered_json document = document_head(context, "speedbump/attach/1");
    document["type"] = "final";
    document["reason"] = reason;
    document["time_unix_ns"] = unix_ns(snapshot.taken_at);
    add_outcome(document, options, snapshot, file);
    return to_line(document);
}

std::string session_json(const Context& context, pid_t pid, const session::SessionOptions& options,
                         const Snapshot& snapshot, const TargetsFile& file) {
    ordered_json document = document_head(context, "speedbump/session/1");
    document["pid"] = pid;
    document["time_unix_ns"] = unix_ns(snapshot.taken_at);
    document["armed"] = snapshot.armed;
    add_outcome(document, options, snapshot, file);
    return to_line(document);
}

std::string check_json(const Context& context, const CheckReport& report, const TargetsFile& file) {
    ordered_json document = document_head(context, "speedbump/check/1");
    document["targets_file"] = file.path;
    document["looked_at"] = report.places;
    const std::vector<LineState> states = line_states(report, file);
    ordered_json lines = ordered_json::array();
    for (size_t i = 0; i < file.lines.size(); i++) {
        const targets::TargetLine& line = file.lines[i];
        ordered_json one = {{"line", line.line_number},
                            {"text", line.original},
                            {"world", runtime_name(line.runtime)},
                            {"state", line_state_name(states[i])}};
        ordered_json matches = ordered_json::array();
        for (const process::NativeMatch& match : report.matches) {
            if (match.line_index != i) continue;
            matches.push_back({{"path", match.path},
                               {"name", match.name},
                               {"entry_offset", match.entry_offset},
                               {"site", site_json(match.site)}});
        }
        one["matches"] = std::move(matches);
        lines.push_back(std::move(one));
    }
    document["lines"] = std::move(lines);
    ordered_json skipped = ordered_json::array();
    for (const process::Skipped& one : report.skipped) {
        ordered_json entry = {{"path", one.path}, {"name", one.name}};
        if (one.line_index < file.lines.size()) entry["line"] = line_number(file, one.line_index);
        entry["reason"] = one.reason;
        skipped.push_back(std::move(entry));
    }
    document["skipped"] = std::move(skipped);
    return to_line(document);
}

std::string list_json(const Context& context, const FunctionList& functions) {
    ordered_json document = document_head(context, "speedbump/list/1");
    ordered_json list = ordered_json::array();
    for (const ListedFunction& function : functions.native) {
        list.push_back({{"path", function.path},
                        {"name", function.name},
                        {"demangled", function.demangled},
                        {"file_offset", function.file_offset},
                        {"size", function.size},
                        {"ifunc", function.is_ifunc},
                        {"refusal", function.refusal},
                        {"targets_line", targets_line(function)}});
    }
    document["functions"] = std::move(list);
    ordered_json python = ordered_json::array();
    for (const engine::PythonMatch& function : functions.python)
        python.push_back({{"module", function.module},
                          {"name", function.name},
                          {"file", function.file},
                          {"targets_line", targets_line(function)}});
    document["python_functions"] = std::move(python);
    return to_line(document);
}

std::string doctor_json(const Context& context, const std::vector<engine::Check>& checks) {
    ordered_json document = document_head(context, "speedbump/doctor/1");
    ordered_json list = ordered_json::array();
    for (const engine::Check& check : checks) {
        list.push_back({{"name", check.name},
                        {"state", check_state_name(check.state)},
                        {"detail", check.detail},
                        {"remedy", check.remedy}});
    }
    document["checks"] = std::move(list);
    return to_line(document);
}

std::string calibrate_json(const Context& context,
                           const std::vector<engine::CalibrationRow>& rows) {
    ordered_json document = document_head(context, "speedbump/calibrate/1");
    ordered_json list = ordered_json::array();
    for (const engine::CalibrationRow& row : rows) {
        ordered_json points = ordered_json::array();
        for (const engine::CalibrationRow::Point& point : row.accuracy) {
            points.push_back({{"requested_ns", point.requested.count()},
                              {"measured_ns", point.measured.count()},
                              {"spread_ns", point.spread.count()}});
        }
        list.push_back({{"engine", row.engine},
                        {"site", site_kind_name(row.kind)},
                        {"floor_ns", row.floor.count()},
                        {"floor_spread_ns", row.floor_spread.count()},
                        {"accuracy", std::move(points)}});
    }
    document["rows"] = std::move(list);
    return to_line(document);
}

} // namespace speedbump::report
