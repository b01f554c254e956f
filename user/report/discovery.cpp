// SPDX-License-Identifier: MIT
#include "report/discovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "report/check.h"
#include "report/json_parts.h"
#include "util/text.h"
#include "util/units.h"

namespace speedbump::report {

namespace {

using discover::SurveyedFunction;
using stacks::FunctionUse;
using PythonEntry = std::pair<const stacks::Profile::Key*, const FunctionUse*>;

template <typename T>
void keep_top(std::vector<T>& list, size_t top) {
    if (top != 0 && list.size() > top) list.resize(top);
}

// What takes most of the time first: of threads that ran, else of all. A module's code runs once
// and can't be slowed any more.
std::vector<PythonEntry> ranked_python(const Discovery& discovery) {
    std::vector<PythonEntry> list;
    for (const auto& [key, use] : discovery.stacks.profile.functions())
        if (key.name != "<module>") list.emplace_back(&key, &use);
    std::stable_sort(list.begin(), list.end(), [](const PythonEntry& a, const PythonEntry& b) {
        return std::tuple(a.second->active, a.second->self, a.second->total) >
               std::tuple(b.second->active, b.second->self, b.second->total);
    });
    keep_top(list, discovery.top);
    return list;
}

// A native function as both looks saw it.
struct NativeEntry {
    std::string path;
    std::string name;
    const FunctionUse* use = nullptr;          // in the stacks; nullptr: in none
    const SurveyedFunction* counted = nullptr; // its calls; nullptr: it was not watched
    std::string not_counted;                   // why not
    double calls_per_second() const { return counted != nullptr ? counted->calls_per_second() : 0; }
    // Not called while it was watched, so that a delay would not show: main(), an event loop.
    bool is_never_called() const { return counted != nullptr && counted->calls.empty(); }
    uint64_t active() const { return use != nullptr ? use->active : 0; }
    uint64_t total() const { return use != nullptr ? use->total : 0; }
};

std::string why_not_counted(const discover::Survey& survey, const discover::FunctionPlace& place,
                            const std::string& name) {
    const auto known = survey.not_counted.find(place);
    if (known != survey.not_counted.end()) return known->second;
    for (const process::Skipped& one : survey.skipped)
        if (one.path == place.first && one.name == name) return one.reason;
    if (!survey.files.contains(place.first))
        return survey.processes_not_watched > 0 ? "the processes that run it ran too seldom"
                                                : "its file could not be read";
    return "no symbol table names it as a function";
}

// What takes most of the CPUs' time first, then what is called most often.
std::vector<NativeEntry> ranked_native(const Discovery& discovery) {
    std::map<std::pair<std::string, uint64_t>, NativeEntry> entries; // by path and offset
    for (const auto& [key, use] : discovery.stacks.profile.native_functions())
        if (key.path.starts_with('/'))
            entries[{key.path, key.entry_offset}] = {key.path, key.name, &use, nullptr, ""};
    if (discovery.survey)
        for (const SurveyedFunction& function : discovery.survey->functions) {
            const std::pair place(function.match.path, function.match.entry_offset);
            const auto sampled = entries.find(place);
            if (sampled == entries.end() && function.calls.empty()) continue;
            NativeEntry& entry = entries[place];
            entry.path = function.match.path;
            entry.name = function.match.name;
            entry.counted = &function;
        }
    std::vector<NativeEntry> list;
    for (auto& [place, entry] : entries) {
        if (entry.counted == nullptr && discovery.survey)
            entry.not_counted = why_not_counted(*discovery.survey, place, entry.name);
        if (entry.counted != nullptr || !discovery.counted_only) list.push_back(std::move(entry));
    }
    std::stable_sort(list.begin(), list.end(), [](const NativeEntry& a, const NativeEntry& b) {
        return std::tuple(!a.is_never_called(), a.active(), a.calls_per_second(), a.total()) >
               std::tuple(!b.is_never_called(), b.active(), b.calls_per_second(), b.total());
    });
    keep_top(list, discovery.top);
    return list;
}

std::string share_of(uint64_t part, uint64_t whole) {
    return show_share(whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole));
}

std::string busiest_thread(const FunctionUse& use) {
    const auto busiest =
        std::max_element(use.threads.begin(), use.threads.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (busiest == use.threads.end()) return "";
    const size_t others = use.threads.size() - 1;
    return printable(busiest->first) + (others > 0 ? fmt::format(" +{}", others) : "");
}

// "~": counted in moments only.
std::string rate_of(const SurveyedFunction& function) {
    return (function.is_dear ? "~" : "") + show_rate(function.calls_per_second());
}

std::string native_line(const NativeEntry& entry) {
    return targets_line({entry.path, entry.name, "", 0, 0, false, {}});
}

std::string python_table(const Discovery& discovery, const std::vector<PythonEntry>& entries,
                         const Style& style) {
    const stacks::Profile& profile = discovery.stacks.profile;
    Table table({{"self", true, false},
                 {"total", true, false},
                 {"active", true, false},
                 {"lock", true, false},
                 {"thread", false, false},
                 {"Python function", false, true}});
    for (const auto& [key, use] : entries)
        table.add_row(
            {share_of(use->self, profile.stacks()), share_of(use->total, profile.stacks()),
             share_of(use->active, profile.active_stacks()), share_of(use->gil, profile.stacks()),
             busiest_thread(*use),
             printable(fmt::format("{} ({}:{})", key->name, key->file, key->first_line))});
    return table.render(style);
}

struct Reason {
    stacks::Unread why;
    const char* key;
    const char* text;
};
constexpr Reason kReasons[] = {
    {stacks::Unread::kRanMeanwhile, "ran_meanwhile", "ran on before they were read"},
    {stacks::Unread::kUncertain, "uncertain", "were seen too seldom to be certain"},
    {stacks::Unread::kUnreadable, "unreadable", "made no sense"},
    {stacks::Unread::kNoRoom, "no_room", "came faster than they were taken"},
};
static_assert(std::size(kReasons) == stacks::kUnreadKinds);

std::string reasons_of(const stacks::Profile& profile) {
    std::string text;
    for (const Reason& reason : kReasons)
        if (profile.failed(reason.why) > 0)
            text += fmt::format("{}{} {}", text.empty() ? ": " : ", ",
                                show_count(profile.failed(reason.why)), reason.text);
    return text;
}

std::string stacks_line(const Discovery& discovery) {
    const stacks::Profile& profile = discovery.stacks.profile;
    std::string text =
        fmt::format("{} stacks, {} of threads that were active; {} more could not be read{}\n",
                    show_count(profile.stacks()), show_count(profile.active_stacks()),
                    show_count(profile.failed()), reasons_of(profile));
    if (profile.unmerged() > 0)
        text += fmt::format("{} of them are not whole: native callers are missing\n",
                            show_count(profile.unmerged()));
    return text;
}

std::string native_table(const Discovery& discovery, const std::vector<NativeEntry>& entries,
                         const Style& style) {
    const stacks::Profile& profile = discovery.stacks.profile;
    Table table({{"self", true, false},
                 {"total", true, false},
                 {"active", true, false},
                 {"calls/s", true, false},
                 {"processes", true, false},
                 {"native function", false, true}});
    for (const NativeEntry& entry : entries) {
        const auto share = [&](uint64_t FunctionUse::*part, uint64_t whole) {
            return entry.use == nullptr ? "-" : share_of(entry.use->*part, whole);
        };
        table.add_row({share(&FunctionUse::self, profile.stacks()),
                       share(&FunctionUse::total, profile.stacks()),
                       share(&FunctionUse::active, profile.active_stacks()),
                       entry.counted == nullptr  ? "?"
                       : entry.is_never_called() ? "never"
                                                 : rate_of(*entry.counted),
                       entry.counted == nullptr ? "?" : show_count(entry.counted->calls.size()),
                       printable(entry.path + ":" + entry.name)});
    }
    std::string text = table.render(style);
    if (std::any_of(entries.begin(), entries.end(), [](const NativeEntry& entry) {
            return entry.counted != nullptr && entry.counted->is_dear;
        }))
        text +=
            "~: counted in moments only, as more would cost more than --budget; the program\n"
            "   was slower in them, so that the true rate may be higher\n";
    for (const NativeEntry& entry : entries)
        if (!entry.not_counted.empty())
            text += printable("not counted: " + entry.name + ": " + entry.not_counted) + "\n";
    return text;
}

// "f, g, h and 2 more"
std::string some_of(const std::set<std::string>& names) {
    constexpr size_t kMaxNames = 3;
    std::string text;
    size_t count = 0;
    for (const std::string& name : names) {
        if (count++ == kMaxNames)
            return text + fmt::format(" and {} more", names.size() - kMaxNames);
        text += (text.empty() ? "" : ", ") + name;
    }
    return text;
}

size_t never_called(const discover::Survey& survey) {
    return static_cast<size_t>(
        std::count_if(survey.functions.begin(), survey.functions.end(),
                      [](const SurveyedFunction& function) { return function.calls.empty(); }));
}

std::string survey_lines(const discover::Survey& survey, size_t top, bool verbose) {
    std::string text = fmt::format(
        "{} native functions watched, {} of them never called; counting took {} of a CPU\n",
        show_count(survey.functions.size()), show_count(never_called(survey)),
        show_share(survey.added_cpu));
    if (survey.not_watched > 0)
        text += fmt::format(
            "{} functions not watched for lack of time: try a longer --for, or "
            "--native GLOB\n",
            show_count(survey.not_watched));
    if (survey.processes_not_watched > 0)
        text += fmt::format(
            "calls were counted in the processes that ran most; not in {} others: --no-children "
            "and\n--pid PID for one of them\n",
            show_count(survey.processes_not_watched));
    if (survey.left_out > 0)
        text += fmt::format(
            "{} functions left out: no stack showed them, and they are too many, or a probe is "
            "expensive\nthere; --native GLOB watches them\n",
            show_count(survey.left_out));
    if (survey.files_left_out > 0)
        text += fmt::format(
            "{} large files left out, as no stack showed them; --native 'FILE:*' watches one\n",
            show_count(survey.files_left_out));
    for (const std::string& line : survey.unmatched)
        text += fmt::format("no function in a symbol table: {}\n", printable(line));
    std::vector<const discover::InlinedPlace*> inlined;
    for (const discover::InlinedPlace& one : survey.inlined) inlined.push_back(&one);
    std::stable_sort(inlined.begin(), inlined.end(), [](const auto* a, const auto* b) {
        return a->function.places > b->function.places;
    });
    const size_t left_out = top != 0 && inlined.size() > top ? inlined.size() - top : 0;
    inlined.resize(inlined.size() - left_out);
    for (const discover::InlinedPlace* one : inlined)
        text += printable(fmt::format("inlined, not counted there: {}:{} in {}", one->path,
                                      one->function.name, some_of(one->function.callers))) +
                "\n";
    if (left_out > 0) text += fmt::format("inlined, too: {} more\n", show_count(left_out));
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
    for (const std::string& interpreter : discovery.stacks.interpreters)
        text += printable(interpreter) + "\n";
    text += stacks_line(discovery);
    const auto python = ranked_python(discovery);
    const auto native = ranked_native(discovery);
    if (!python.empty()) text += "\n" + python_table(discovery, python, style);
    if (!native.empty()) text += "\n" + native_table(discovery, native, style);
    if (discovery.survey) text += "\n" + survey_lines(*discovery.survey, discovery.top, verbose);
    constexpr size_t kMaxNotes = 5; // a tree may have many processes of other users
    const std::vector<std::string>& notes = discovery.stacks.notes;
    for (size_t i = 0; i < std::min(notes.size(), kMaxNotes); ++i)
        text += printable(notes[i]) + "\n";
    if (notes.size() > kMaxNotes)
        text += fmt::format("and {} more like these\n", notes.size() - kMaxNotes);
    for (const std::string& note : discovery.notes) text += printable(note) + "\n";
    return text;
}

std::string discovery_json(const Context& context, const Discovery& discovery) {
    using nlohmann::ordered_json;
    ordered_json document = document_head(context, "speedbump/discover/1");
    document["pids"] = discovery.pids;
    document["duration_ns"] = discovery.duration.count();
    const stacks::Profile& profile = discovery.stacks.profile;
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
    ordered_json failed_why = ordered_json::object();
    for (const Reason& reason : kReasons) failed_why[reason.key] = profile.failed(reason.why);
    document["stacks"] = {{"all", profile.stacks()},
                          {"active", profile.active_stacks()},
                          {"python", profile.python_stacks()},
                          {"native", profile.native_stacks()},
                          {"not_whole", profile.unmerged()},
                          {"failed", profile.failed()},
                          {"failed_why", std::move(failed_why)},
                          {"from_ns", discovery.stacks.from_ns},
                          {"to_ns", discovery.stacks.to_ns},
                          {"own_cpu", discovery.stacks.own_cpu}};
    document["python"] = {{"functions", std::move(functions)}};
    ordered_json native = ordered_json::array();
    for (const NativeEntry& entry : ranked_native(discovery)) {
        ordered_json one = {{"path", entry.path}, {"name", entry.name}};
        if (entry.use != nullptr) {
            one["self"] = entry.use->self;
            one["total"] = entry.use->total;
            one["active"] = entry.use->active;
            one["threads"] = entry.use->threads;
        }
        if (entry.counted != nullptr) {
            ordered_json processes = ordered_json::object();
            for (const auto& [pid, calls] : entry.counted->calls)
                processes[std::to_string(pid)] = calls;
            one["calls"] = entry.counted->all_calls();
            one["watched_ns"] = entry.counted->watched.count();
            one["calls_per_second"] = entry.calls_per_second();
            one["processes"] = std::move(processes);
            one["in_moments"] = entry.counted->is_dear;
        } else if (!entry.not_counted.empty()) {
            one["not_counted"] = entry.not_counted;
        }
        one["targets_line"] = native_line(entry);
        native.push_back(std::move(one));
    }
    document["native"] = {{"functions", std::move(native)}};
    if (discovery.survey) {
        const discover::Survey& survey = *discovery.survey;
        ordered_json inlined = ordered_json::array();
        for (const discover::InlinedPlace& one : survey.inlined)
            inlined.push_back({{"path", one.path},
                               {"name", one.function.name},
                               {"places", one.function.places},
                               {"callers", one.function.callers}});
        document["native"].update({{"watched", survey.functions.size()},
                                   {"not_watched", survey.not_watched},
                                   {"processes_not_watched", survey.processes_not_watched},
                                   {"left_out", survey.left_out},
                                   {"files_left_out", survey.files_left_out},
                                   {"refused", survey.refused},
                                   {"added_cpu", survey.added_cpu},
                                   {"never_called", never_called(survey)},
                                   {"inlined", std::move(inlined)},
                                   {"no_such_function", survey.unmatched}});
    }
    std::vector<std::string> notes = discovery.stacks.notes;
    notes.insert(notes.end(), discovery.notes.begin(), discovery.notes.end());
    document["notes"] = notes;
    return to_line(document);
}

std::string discovery_targets(const Discovery& discovery) {
    std::string text =
        fmt::format("# speedbump discover, {} seconds. Delays: 1us where a line names none.\n",
                    std::chrono::duration_cast<std::chrono::seconds>(discovery.duration).count());
    const stacks::Profile& profile = discovery.stacks.profile;
    size_t left_out = 0;
    // A comment goes where it would make the line too long.
    const auto add = [&](std::string& lines, const std::string& line, const std::string& comment) {
        const bool fits = line.size() + comment.size() <= targets::kMaxLineBytes;
        if (line.empty())
            ++left_out;
        else
            lines += line + (fits ? comment : "") + "\n";
    };
    const auto shares = [&](const FunctionUse& use) {
        return fmt::format(" self {} total {} active {}", share_of(use.self, profile.stacks()),
                           share_of(use.total, profile.stacks()),
                           share_of(use.active, profile.active_stacks()));
    };
    const auto python = ranked_python(discovery);
    if (!python.empty())
        text += fmt::format("\n# Python, by share of {} stacks\n", show_count(profile.stacks()));
    for (const auto& [key, use] : python)
        add(text, python_targets_line(key->file, key->name, key->is_qualified),
            "  #" + shares(*use));
    std::string lines;
    for (const NativeEntry& entry : ranked_native(discovery)) {
        if (entry.is_never_called()) continue;
        std::string comment = "  #" + (entry.use != nullptr ? shares(*entry.use) : "");
        if (entry.counted != nullptr)
            comment += fmt::format(" {} calls/s in {} processes", rate_of(*entry.counted),
                                   entry.counted->calls.size());
        add(lines, native_line(entry), comment);
    }
    if (!lines.empty())
        text += fmt::format("\n# native, by active share of {} stacks, then by calls per second\n",
                            show_count(profile.stacks())) +
                lines;
    if (left_out > 0)
        text += fmt::format("\n# {} more have names that no line can hold\n", show_count(left_out));
    return text;
}

std::string discovery_collapsed(const Discovery& discovery) {
    std::string text;
    for (const auto& [stack, count] : discovery.stacks.profile.tree().collapsed())
        text += fmt::format("{} {}\n", stack, count);
    return text;
}

} // namespace speedbump::report
