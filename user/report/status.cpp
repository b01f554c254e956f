// SPDX-License-Identifier: MIT
#include "report/status.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "report/text.h"
#include "util/text.h"
#include "util/units.h"

namespace speedbump::report {

namespace {

using nlohmann::json;

nanoseconds time_of(const json& document, const char* key) {
    return nanoseconds(document.at(key).get<int64_t>());
}

Totals read_totals(const json& document) {
    return {document.at("calls").get<uint64_t>(), document.at("delays").get<uint64_t>(),
            time_of(document, "requested_ns"), time_of(document, "measured_ns")};
}

LiveTarget read_target(const json& document) {
    session::Target target;
    target.container = document.at("container").get<std::string>();
    target.name = document.at("name").get<std::string>();
    target.settings.delay = time_of(document, "delay_ns");
    target.settings.every = document.at("every").get<uint64_t>();
    target.settings.start = time_of(document, "start_ns");
    target.settings.duration = time_of(document, "duration_ns");
    if (document.at("mode").get<std::string>() == "sleep")
        target.settings.mode = targets::Mode::kSleep;
    for (auto [key, place] : {std::pair{"caller", &target.settings.caller},
                              std::pair{"thread", &target.settings.thread}})
        if (document.contains(key))
            *place = targets::Pattern{document.at(key).get<std::string>(), true};
    return {short_target_label(target), delay_and_window(target.settings), read_totals(document)};
}

LiveSession read_session(const json& document) {
    LiveSession session;
    session.pid = document.at("pid").get<pid_t>();
    session.command = document.at("command").get<std::string>();
    session.engine = document.value("engine", "");
    session.targets_file = document.at("targets_file").get<std::string>();
    session.armed = document.at("armed").get<bool>();
    session.since_armed = time_of(document, "since_armed_ns");
    session.roots = document.at("options").at("pids").get<std::vector<pid_t>>();
    for (const json& process : document.at("processes")) {
        if (process.at("alive").get<bool>()) ++session.processes;
    }
    session.all = read_totals(document.at("all"));
    for (const json& target : document.at("targets")) {
        session.targets.push_back(read_target(target));
    }
    return session;
}

std::string state(const LiveSession& session) {
    if (session.armed) return "armed";
    return session.since_armed.count() == 0 ? "not begun" : "paused";
}

std::string since(const LiveSession& session) {
    return session.since_armed.count() == 0 ? "-" : show_time(session.since_armed);
}

std::string join(const std::vector<pid_t>& pids) {
    return pids.empty() ? "-" : fmt::format("{}", fmt::join(pids, ","));
}

} // namespace

Result<LiveSession> parse_session_json(const std::string& text) {
    try {
        const json document = json::parse(text);
        if (document.at("schema") == "speedbump/session/1") return read_session(document);
    } catch (const json::exception& error) {
        return make_error(ErrorKind::kInvalid,
                          std::string("no document of speedbump/session/1: ") + error.what());
    }
    return make_error(ErrorKind::kInvalid, "no document of speedbump/session/1")
        .with_hint("the same version of speedbump as the session's");
}

std::string status_list(const std::vector<LiveSession>& sessions, const std::vector<pid_t>& silent,
                        const Style& style) {
    Table table({{"SESSION", true},
                 {"COMMAND"},
                 {"ENGINE"},
                 {"STATE"},
                 {"SINCE", true},
                 {"ROOTS", false, true},
                 {"PROCESSES", true},
                 {"TARGETS", true},
                 {"DELAYS", true},
                 {"ADDED", true},
                 {"FILE", false, true}});
    for (const LiveSession& one : sessions) {
        table.add_row({std::to_string(one.pid), printable(one.command), printable(one.engine),
                       state(one), since(one), join(one.roots), show_count(one.processes),
                       show_count(one.targets.size()), show_count(one.all.delays),
                       show_time(one.all.measured), printable(one.targets_file)});
    }
    for (const pid_t pid : silent) {
        table.add_row({std::to_string(pid), "", "", "no answer", "", "", "", "", "", "", ""});
    }
    return table.render(style);
}

std::string status_detail(const LiveSession& session, const Style& style) {
    std::string out = fmt::format("session {}: {} {}, engine {}, {} for {}\n", session.pid,
                                  printable(session.command), printable(session.targets_file),
                                  printable(session.engine), state(session), since(session));
    out += fmt::format("roots {}, {} processes alive, {} calls, {} delays, {} added\n",
                       join(session.roots), show_count(session.processes),
                       show_count(session.all.hits), show_count(session.all.delays),
                       show_time(session.all.measured));
    std::vector<const LiveTarget*> order;
    for (const LiveTarget& target : session.targets) order.push_back(&target);
    std::stable_sort(order.begin(), order.end(), [](const LiveTarget* a, const LiveTarget* b) {
        return a->totals.measured > b->totals.measured;
    });
    const size_t rows = std::min(order.size(), style.max_rows);
    Table table({{"TARGET", false, true},
                 {"DELAY"},
                 {"CALLS", true},
                 {"DELAYS", true},
                 {"REQUESTED", true},
                 {"MEASURED", true}});
    for (size_t i = 0; i < rows; i++) {
        const Totals& totals = order[i]->totals;
        table.add_row({order[i]->label, order[i]->delay, show_count(totals.hits),
                       show_count(totals.delays), show_time(totals.requested),
                       show_time(totals.measured)});
    }
    out += table.render(style);
    if (rows < order.size()) out += fmt::format("... and {} more\n", order.size() - rows);
    return out;
}

} // namespace speedbump::report
