// SPDX-License-Identifier: MIT
#include "report/discovery.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/check.h"
#include "report/json_parts.h"
#include "util/text.h"
#include "util/units.h"

namespace speedbump::report {

namespace {

using inspect::FunctionUse;
using session::SurveyedFunction;
using PythonEntry = std::pair<const inspect::Profile::Key*, const FunctionUse*>;

template <typename T>
void keep_top(std::vector<T>& list, size_t top) {
    if (top != 0 && list.size() > top) list.resize(top);
}

// What takes most of the time first: of threads that ran, else of all. A module's code runs once
// and can't be slowed any more.
std::vector<PythonEntry> ranked_python(const Discovery& discovery) {
    std::vector<PythonEntry> list;
    for (const auto& [key, use] : discovery.profile.functions())
        if (key.name != "<module>") list.emplace_back(&key, &use);
    std::stable_sort(list.begin(), list.end(), [](const PythonEntry& a, const PythonEntry& b) {
        return std::tuple(a.second->active, a.second->self, a.second->total) >
               std::tuple(b.second->active, b.second->self, b.second->total);
    });
    keep_top(list, discovery.top);
    return list;
}

std::vector<const SurveyedFunction*> ranked_native(const Discovery& discovery) {
    std::vector<const SurveyedFunction*> list;
    if (!discovery.survey) return list;
    for (const SurveyedFunction& function : discovery.survey->functions)
        if (!function.calls.empty()) list.push_back(&function);
    std::stable_sort(list.begin(), list.end(),
                     [](const SurveyedFunction* a, const SurveyedFunction* b) {
                         return a->calls_per_second() > b->calls_per_second();
                     });
    keep_top(list, discovery.top);
    return list;
}

std::string share_of(uint64_t part, uint64_t whole) {
    return show_share(whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole));
}

std::string busiest_thread(const FunctionUse& use) {
    const auto most =
        std::max_element(use.threads.begin(), use.threads.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most == use.threads.end()) return "";
    const size_t others = use.threads.size() - 1;
    return printable(most->first) + (others > 0 ? fmt::format(" +{}", others) : "");
}

std::string native_line(const SurveyedFunction& function) {
    return targets_line({function.match.path, function.match.name, "", 0, 0, false});
}

std::string python_table(const Discovery& discovery, const Style& style) {
    const inspect::Profile& profile = discovery.profile;
    Table table({{"self", true, false},
                 {"total", true, false},
                 {"active", true, false},
                 {"lock", true, false},
                 {"thread", false, false},
                 {"Python function", false, true}});
    for (const auto& [key, use] : ranked_python(discovery))
        table.add_row(
            {share_of(use->self, profile.stacks()), share_of(use->total, profile.stacks()),
             share_of(use->active, profile.active_stacks()), share_of(use->gil, profile.stacks()),
             busiest_thread(*use),
             printable(fmt::format("{} ({}:{})", key->name, key->file, key->first_line))});
    return fmt::format("Python: {} stacks, {} of threads that were active, {} could not be read\n",
                       show_count(profile.stacks()), show_count(profile.active_stacks()),
                       show_count(profile.failed())) +
           table.render(style);
}

std::string native_table(const Discovery& discovery, const Style& style, bool verbose) {
    const session::Survey& survey = *discovery.survey;
    Table table(
        {{"calls/s", true, false}, {"processes", true, false}, {"native function", false, true}});
    for (const SurveyedFunction* function : ranked_native(discovery))
        table.add_row({show_rate(function->calls_per_second()), show_count(function->calls.size()),
                       printable(function->match.path + ":" + function->match.name)});
    const auto never =
        std::count_if(survey.functions.begin(), survey.functions.end(),
                      [](const SurveyedFunction& function) { return function.calls.empty(); });
    std::string text = fmt::format(
        "native: {} functions watched, {} of them never called; counting took {} of a CPU\n",
        show_count(survey.functions.size()), show_count(static_cast<uint64_t>(never)),
        show_share(survey.added_cpu));
    if (survey.not_watched > 0)
        text += fmt::format(
            "{} functions not watched for lack of time: try a longer --for, or "
            "--native GLOB\n",
            show_count(survey.not_watched));
    text += table.render(style);
    for (const std::string& line : survey.unmatched)
        text += fmt::format("no function in a symbol table (inlined everywhere, or stripped): {}\n",
                            printable(line));
    if (verbose)
        for (const SurveyedFunction& function : survey.functions)
            if (function.calls.empty())
                text +=
                    "never called: " + printable(function.match.path + ":" + function.match.name) +
                    "\n";
    return text;
}

} // namespace

std::string discovery_text(const Discovery& discovery, const Style& style, bool verbose) {
    std::string text;
    for (const std::string& interpreter : discovery.interpreters)
        text += printable(interpreter) + "\n";
    if (discovery.profile.stacks() > 0) text += python_table(discovery, style);
    if (discovery.survey) {
        if (!text.empty()) text += "\n";
        text += native_table(discovery, style, verbose);
    }
    for (const std::string& note : discovery.notes) text += printable(note) + "\n";
    return text;
}

std::string discovery_json(const Context& context, const Discovery& discovery) {
    using nlohmann::ordered_json;
    ordered_json document = document_head(context, "speedbump/discover/1");
    document["pids"] = discovery.pids;
    document["duration_ns"] = discovery.duration.count();
    const inspect::Profile& profile = discovery.profile;
    ordered_json functions = ordered_json::array();
    for (const auto& [key, use] : ranked_python(discovery))
        functions.push_back(
            {{"function", key->name},
             {"file", key->file},
             {"line", key->first_line},
             {"self", use->self},
             {"total", use->total},
             {"active", use->active},
             {"gil", use->gil},
             {"threads", use->threads},
             {"targets_line", python_targets_line(key->file, key->name, key->is_qualified)}});
    document["python"] = {{"stacks", profile.stacks()},
                          {"active", profile.active_stacks()},
                          {"failed", profile.failed()},
                          {"functions", std::move(functions)}};
    if (discovery.survey) {
        const session::Survey& survey = *discovery.survey;
        ordered_json called = ordered_json::array();
        for (const SurveyedFunction* function : ranked_native(discovery)) {
            ordered_json processes = ordered_json::object();
            for (const auto& [pid, calls] : function->calls) processes[std::to_string(pid)] = calls;
            called.push_back({{"path", function->match.path},
                              {"name", function->match.name},
                              {"calls", function->all_calls()},
                              {"watched_ns", function->watched.count()},
                              {"calls_per_second", function->calls_per_second()},
                              {"processes", std::move(processes)},
                              {"targets_line", native_line(*function)}});
        }
        ordered_json never = ordered_json::array();
        for (const SurveyedFunction& function : survey.functions)
            if (function.calls.empty())
                never.push_back(function.match.path + ":" + function.match.name);
        document["native"] = {
            {"watched", survey.functions.size()},  {"not_watched", survey.not_watched},
            {"refused", survey.refused},           {"added_cpu", survey.added_cpu},
            {"functions", std::move(called)},      {"never_called", std::move(never)},
            {"no_such_function", survey.unmatched}};
    }
    document["notes"] = discovery.notes;
    return to_line(document);
}

std::string discovery_targets(const Discovery& discovery) {
    std::string text =
        fmt::format("# speedbump discover, {} seconds. Delays: 1us where a line names none.\n",
                    std::chrono::duration_cast<std::chrono::seconds>(discovery.duration).count());
    const inspect::Profile& profile = discovery.profile;
    const auto python = ranked_python(discovery);
    if (!python.empty())
        text += fmt::format("\n# Python, by share of {} stacks\n", show_count(profile.stacks()));
    for (const auto& [key, use] : python)
        text += fmt::format("{}  # self {} total {} active {}\n",
                            python_targets_line(key->file, key->name, key->is_qualified),
                            share_of(use->self, profile.stacks()),
                            share_of(use->total, profile.stacks()),
                            share_of(use->active, profile.active_stacks()));
    const auto native = ranked_native(discovery);
    if (!native.empty()) text += "\n# native, by calls per second\n";
    for (const SurveyedFunction* function : native)
        text += fmt::format("{}  # {} calls/s in {} processes\n", native_line(*function),
                            show_rate(function->calls_per_second()), function->calls.size());
    return text;
}

std::string discovery_collapsed(const Discovery& discovery) {
    std::string text;
    for (const auto& [stack, count] : discovery.profile.collapsed())
        text += fmt::format("{} {}\n", stack, count);
    return text;
}

} // namespace speedbump::report
