// SPDX-License-Identifier: MIT
#include "report/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "engine/machine.h"
#include "targets/parser.h"
#include "util/text.h"
#include "util/units.h"

namespace speedbump::report {

namespace {

std::string plural(size_t count, const std::string& noun) {
    const char* ending = noun.back() == 's' ? "es" : "s";
    return show_count(count) + " " + noun + (count == 1 ? "" : ending);
}

size_t living_processes(const Snapshot& snapshot) {
    return static_cast<size_t>(std::count_if(snapshot.processes.begin(), snapshot.processes.end(),
                                             [](const auto& process) { return process.alive; }));
}

std::string line_number(const TargetsFile& file, size_t line_index) {
    if (line_index >= file.lines.size()) return "?";
    return std::to_string(file.lines[line_index].line_number);
}

std::string line_text(const TargetsFile& file, size_t line_index) {
    if (line_index >= file.lines.size()) return "?";
    return printable(file.lines[line_index].original);
}

// Mean of what a delayed call was slowed by.
std::string per_delay(const Totals& totals) {
    if (totals.delays == 0) return "-";
    return show_time(totals.measured / static_cast<int64_t>(totals.delays));
}

std::string lost_note(const Snapshot& snapshot, const Style& style) {
    std::string out;
    if (snapshot.lost_counts > 0) {
        out += paint(style, Tone::kWarning,
                     show_count(snapshot.lost_counts) +
                         " calls could not be told apart by process: too many processes") +
               "\n";
    }
    if (snapshot.counts_are_old) {
        out +=
            paint(style, Tone::kBad,
                  "calls and delays of native functions are old: their counters cannot be read") +
            "\n";
    }
    if (snapshot.lost_members > 0) {
        out += paint(style, Tone::kBad,
                     plural(snapshot.lost_members, "process") +
                         " not delayed, or late: the table of processes was full") +
               "\n";
    }
    if (snapshot.lost_events > 0) {
        out += paint(style, Tone::kWarning,
                     plural(snapshot.lost_events, "event") +
                         " lost: a new library or process may have been found late") +
               "\n";
    }
    return out;
}

} // namespace

std::string site_kind_name(elf::SiteKind kind) {
    switch (kind) {
        case elf::SiteKind::kOptimizedNop:
            return engine::nop_kind_name();
        case elf::SiteKind::kEmulated:
            return "emulated";
        case elf::SiteKind::kSingleStep:
            return "single-stepped";
        case elf::SiteKind::kJump:
            return "jump";
    }
    return "unknown";
}

std::string describe_site(const session::Target& target) {
    if (target.runtime == targets::Runtime::kPython) return "Python hook";
    std::string text = site_kind_name(target.site.kind);
    if (!target.site.instruction.empty()) text += ", " + printable(target.site.instruction);
    if (target.site.file_offset > target.entry_offset) {
        text += fmt::format(" at +{}", target.site.file_offset - target.entry_offset);
    }
    return text;
}

std::string delay_and_window(const engine::TargetSettings& settings) {
    std::string text = targets::format_duration(settings.delay);
    if (settings.every != 1) text += fmt::format(" every={}", settings.every);
    if (settings.start.count() != 0) text += " start=" + targets::format_duration(settings.start);
    if (settings.duration.count() != 0) {
        text += " duration=" + targets::format_duration(settings.duration);
    }
    if (settings.mode == targets::Mode::kSleep) text += " mode=sleep";
    if (settings.caller) text += " caller=" + printable(settings.caller->text);
    if (settings.thread) text += " thread=" + printable(settings.thread->text);
    return text;
}

std::string match_table(const Snapshot& snapshot, const TargetsFile& file, const Style& style) {
    std::string processes;
    for (const session::ProcessInfo& process : snapshot.processes) {
        if (!process.alive) continue;
        if (processes.size() > 60) {
            processes += ", ...";
            break;
        }
        processes += fmt::format("{}{} {}", processes.empty() ? "" : ", ", process.pid,
                                 printable(process.command));
    }
    const std::vector<LineSummary> lines =
        summary_by_line(snapshot, std::vector<Totals>(snapshot.targets.size()));
    // A Python line is one target, whatever functions it will be found to name.
    const auto python = static_cast<size_t>(std::count_if(
        snapshot.targets.begin(), snapshot.targets.end(),
        [](const auto& target) { return target.runtime == targets::Runtime::kPython; }));
    const size_t functions = snapshot.targets.size() - python;
    std::string found = paint(style, Tone::kBold, plural(functions, "function")) + " matched by " +
                        plural(lines.size() - python, "line");
    if (python > 0) {
        const std::string python_lines = paint(style, Tone::kBold, plural(python, "Python line"));
        found = functions == 0 ? python_lines : found + " and " + python_lines;
    }
    std::string out =
        fmt::format("{} in {}{}{}{}\n", found, plural(living_processes(snapshot), "process"),
                    living_processes(snapshot) == 0 ? "" : " (", processes,
                    living_processes(snapshot) == 0 ? "" : ")");

    const size_t rows = std::min(snapshot.targets.size(), style.max_rows);
    std::vector<size_t> order(snapshot.targets.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        return snapshot.targets[a].line_index < snapshot.targets[b].line_index;
    });
    if (rows > 0) {
        Table table({{"LINE", true}, {"TARGET", false, true}, {"DELAY"}, {"PROBE"}, {"NOTE"}});
        for (size_t i = 0; i < rows; i++) {
            const session::Target& target = snapshot.targets[order[i]];
            table.add_row({line_number(file, target.line_index), target_label(target),
                           delay_and_window(target.settings), describe_site(target),
                           target.below_floor ? "delay is below the probe's own cost" : ""});
        }
        out += table.render(style);
    }
    if (rows < snapshot.targets.size()) {
        out +=
            fmt::format("... and {} more; by line:\n", show_count(snapshot.targets.size() - rows));
        Table table({{"LINE", true}, {"FUNCTIONS", true}, {"TEXT", false, true}});
        for (const LineSummary& line : lines) {
            table.add_row({line_number(file, line.line_index), show_count(line.targets),
                           line_text(file, line.line_index)});
        }
        out += table.render(style);
    }
    const size_t skipped = std::min(snapshot.skipped.size(), style.max_rows);
    for (size_t i = 0; i < skipped; i++) {
        const session::SkippedTarget& one = snapshot.skipped[i];
        out += fmt::format("skipped {}{}{}: {}\n", printable(one.container),
                           one.name.empty() ? "" : ":", printable(one.name), printable(one.reason));
    }
    if (skipped < snapshot.skipped.size()) {
        out +=
            fmt::format("... and {} more skipped\n", show_count(snapshot.skipped.size() - skipped));
    }
    return out;
}

std::string live_table(const Snapshot& before, const Snapshot& now, const TargetsFile& file,
                       const Style& style) {
    const ActivityReport report = compare(before, now);
    std::string out = fmt::format(
        "{}  {}  {}  {}\n", paint(style, Tone::kBold, "speedbump"),
        now.armed ? paint(style, Tone::kGood, "delaying") : paint(style, Tone::kWarning, "paused"),
        show_time(now.since_armed), plural(living_processes(now), "process"));
    Table table({{"TARGET", false, true},
                 {"CALLS/S", true},
                 {"DELAYS", true},
                 {"REQUESTED", true},
                 {"MEASURED", true},
                 {"PER DELAY", true},
                 {"CPU", true}});
    auto add_row = [&](const std::string& label, const Activity& activity) {
        table.add_row(
            {label, show_rate(activity.calls_per_second), show_count(activity.since_armed.delays),
             show_time(activity.since_armed.requested), show_time(activity.since_armed.measured),
             per_delay(activity.interval), show_share(activity.cpu_share)});
    };
    const size_t rows = std::min(report.targets.size(), style.max_rows);
    for (size_t i = 0; i < rows; i++) {
        add_row(short_target_label(now.targets[report.targets[i].target_index]), report.targets[i]);
    }
    if (rows < report.targets.size()) {
        std::map<size_t, Activity> by_line;
        for (const Activity& one : report.targets) {
            Activity& line = by_line[now.targets[one.target_index].line_index];
            line.since_armed += one.since_armed;
            line.interval += one.interval;
            line.calls_per_second += one.calls_per_second;
            line.cpu_share += one.cpu_share;
        }
        for (const auto& [index, line] : by_line) {
            add_row(
                fmt::format("line {} in all: {}", line_number(file, index), line_text(file, index)),
                line);
        }
    }
    if (report.targets.size() != 1) {
        add_row(fmt::format("all, {} of {} called", show_count(report.targets.size()),
                            plural(now.targets.size(), "function")),
                report.all);
    }
    return out + table.render(style) + lost_note(now, style);
}

std::string final_table(const Snapshot& snapshot, const TargetsFile& file, const Style& style,
                        bool by_process) {
    const std::vector<Totals> totals = totals_by_target(snapshot);
    const double seconds = std::chrono::duration<double>(snapshot.since_armed).count();
    std::vector<size_t> order;
    for (size_t i = 0; i < totals.size(); i++) {
        if (totals[i].hits > 0) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        if (totals[a].measured != totals[b].measured) {
            return totals[a].measured > totals[b].measured;
        }
        return totals[a].hits > totals[b].hits;
    });

    std::string out = fmt::format("{} in {}: {} of {} called\n", paint(style, Tone::kBold, "total"),
                                  show_time(snapshot.since_armed), show_count(order.size()),
                                  plural(totals.size(), "function"));
    Table table({{"LINE", true},
                 {"TARGET", false, true},
                 {"CALLS", true},
                 {"CALLS/S", true},
                 {"DELAYS", true},
                 {"REQUESTED", true},
                 {"MEASURED", true},
                 {"PER DELAY", true},
                 {"CPU", true}});
    auto add_row = [&](const std::string& line, const std::string& label, const Totals& row) {
        const double measured = std::chrono::duration<double>(row.measured).count();
        table.add_row({line, label, show_count(row.hits),
                       show_rate(seconds > 0 ? static_cast<double>(row.hits) / seconds : 0),
                       show_count(row.delays), show_time(row.requested), show_time(row.measured),
                       per_delay(row), show_share(seconds > 0 ? measured / seconds : 0)});
    };
    const size_t rows = std::min(order.size(), style.max_rows);
    std::map<pid_t, std::string> commands;
    for (const session::ProcessInfo& process : snapshot.processes) {
        commands[process.pid] = printable(process.command);
    }
    std::map<size_t, std::map<pid_t, Totals>> processes;
    for (const engine::Counts& counts : snapshot.counts) {
        processes[counts.target][counts.process] +=
            Totals{counts.hits, counts.delays, counts.requested, counts.measured};
    }
    for (size_t i = 0; i < rows; i++) {
        const session::Target& target = snapshot.targets[order[i]];
        add_row(line_number(file, target.line_index), target_label(target), totals[order[i]]);
        const std::map<pid_t, Totals>& rows_of = processes[order[i]];
        const bool told_apart = rows_of.size() > 1 || !rows_of.contains(0);
        if (!by_process || !told_apart) continue;
        for (const auto& [pid, row] : rows_of) {
            const auto command = commands.find(pid);
            add_row("",
                    pid == 0 ? "  other processes"
                             : fmt::format("  {} {}", pid,
                                           command == commands.end() ? "?" : command->second),
                    row);
        }
    }
    if (rows < order.size()) {
        for (const LineSummary& line : summary_by_line(snapshot, totals)) {
            if (line.totals.hits == 0) continue;
            add_row(line_number(file, line.line_index),
                    fmt::format("all {} of {}", show_count(line.targets),
                                line_text(file, line.line_index)),
                    line.totals);
        }
    }
    if (order.size() > 1) add_row("", "all", total(totals));
    if (!order.empty()) out += table.render(style);
    return out + lost_note(snapshot, style);
}

} // namespace speedbump::report
