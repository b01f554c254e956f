// SPDX-License-Identifier: MIT
#include "report/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "report/table.h"
#include "util/text.h"
#include "util/units.h"

namespace speedbump::report {

namespace {

uint64_t difference(uint64_t now, uint64_t before) {
    return now > before ? now - before : 0;
}

void fill_rates(Activity& activity, double seconds) {
    if (seconds <= 0) return;
    activity.calls_per_second = static_cast<double>(activity.interval.hits) / seconds;
    activity.delays_per_second = static_cast<double>(activity.interval.delays) / seconds;
    activity.cpu_share =
        std::chrono::duration<double>(activity.interval.measured).count() / seconds;
}

std::string line_label(const TargetsFile& file, const targets::TargetLine& line) {
    return fmt::format("{}:{}: {}", printable(file.path), line.line_number,
                       printable(line.original));
}

} // namespace

Totals& Totals::operator+=(const Totals& other) {
    hits += other.hits;
    delays += other.delays;
    requested += other.requested;
    measured += other.measured;
    return *this;
}

Totals operator-(const Totals& now, const Totals& before) {
    return Totals{difference(now.hits, before.hits), difference(now.delays, before.delays),
                  std::max(nanoseconds(0), now.requested - before.requested),
                  std::max(nanoseconds(0), now.measured - before.measured)};
}

std::vector<Totals> totals_by_target(const Snapshot& snapshot) {
    std::vector<Totals> totals(snapshot.targets.size());
    for (const engine::Counts& counts : snapshot.counts) {
        if (counts.target >= totals.size()) continue;
        totals[counts.target] +=
            Totals{counts.hits, counts.delays, counts.requested, counts.measured};
    }
    return totals;
}

Totals total(const std::vector<Totals>& all) {
    Totals sum;
    for (const Totals& one : all) sum += one;
    return sum;
}

std::vector<LineSummary> summary_by_line(const Snapshot& snapshot,
                                         const std::vector<Totals>& totals) {
    std::map<size_t, LineSummary> by_line;
    for (size_t i = 0; i < snapshot.targets.size(); i++) {
        LineSummary& summary = by_line[snapshot.targets[i].line_index];
        summary.line_index = snapshot.targets[i].line_index;
        summary.targets++;
        summary.totals += totals[i];
    }
    std::vector<LineSummary> result;
    for (const auto& [index, summary] : by_line) result.push_back(summary);
    return result;
}

ActivityReport compare(const Snapshot& before, const Snapshot& now) {
    ActivityReport report;
    report.interval = std::max(nanoseconds(0), now.since_armed - before.since_armed);
    const double seconds = std::chrono::duration<double>(report.interval).count();
    const std::vector<Totals> earlier = totals_by_target(before);
    const std::vector<Totals> totals = totals_by_target(now);
    for (size_t i = 0; i < totals.size(); i++) {
        if (totals[i].hits == 0) continue;
        Activity activity;
        activity.target_index = i;
        activity.since_armed = totals[i];
        activity.interval = totals[i] - (i < earlier.size() ? earlier[i] : Totals{});
        fill_rates(activity, seconds);
        report.all.interval += activity.interval;
        report.all.since_armed += activity.since_armed;
        report.targets.push_back(activity);
    }
    fill_rates(report.all, seconds);
    std::stable_sort(report.targets.begin(), report.targets.end(),
                     [](const Activity& a, const Activity& b) {
                         if (a.interval.measured != b.interval.measured) {
                             return a.interval.measured > b.interval.measured;
                         }
                         return a.interval.hits > b.interval.hits;
                     });
    return report;
}

std::string target_label(const session::Target& target) {
    return printable(target.container) + ":" + printable(target.name);
}

std::string short_target_label(const session::Target& target) {
    if (target.runtime == targets::Runtime::kPython) return target_label(target);
    const size_t slash = target.container.rfind('/');
    const size_t start = slash == std::string::npos ? 0 : slash + 1;
    return printable(std::string_view(target.container).substr(start)) + ":" +
           printable(target.name);
}

std::vector<std::string> no_hit_warnings(const Snapshot& snapshot, const TargetsFile& file) {
    std::vector<std::string> warnings;
    const std::string seconds = show_time(snapshot.since_armed);
    for (const LineSummary& summary : summary_by_line(snapshot, totals_by_target(snapshot))) {
        if (summary.totals.hits > 0 || summary.line_index >= file.lines.size()) continue;
        const targets::TargetLine& line = file.lines[summary.line_index];
        const char* causes =
            line.runtime == targets::Runtime::kNative
                ? "never called in this time, inlined into its callers, called in another file "
                  "than the one mapped here (compare 'speedbump check -v'), in another name "
                  "space, or only by a process that is not in the tree"
                : "never called in this time, replaced by another function at run time, or only "
                  "called by a process that is not in the tree";
        warnings.push_back(fmt::format(
            "{}: no call in {} ({}); likely: {}", line_label(file, line), seconds,
            summary.targets == 1 ? "1 function" : show_count(summary.targets) + " functions",
            causes));
    }
    return warnings;
}

Result<void> judge_matches(const Snapshot& snapshot, const TargetsFile& file,
                           session::MissingPolicy policy) {
    if (policy == session::MissingPolicy::kIgnore) return {};
    const std::vector<std::string> unmatched = unmatched_warnings(snapshot, file);
    const bool missing = policy == session::MissingPolicy::kError && !unmatched.empty();
    if (!missing && !snapshot.nothing_matched) return {};
    // What a line matches in an interpreter is not known where there was no getting into it.
    if (snapshot.hook_failure) return *snapshot.hook_failure;
    std::string message = missing ? "a line matches nothing (--missing=error)"
                                  : "no target matches anything in these processes";
    for (const std::string& line : unmatched) message += "\n  " + line;
    for (const session::SkippedTarget& one : snapshot.skipped) {
        message +=
            fmt::format("\n  skipped {}{}{}: {}", printable(one.container),
                        one.name.empty() ? "" : ":", printable(one.name), printable(one.reason));
    }
    return make_error(ErrorKind::kNothingMatched, message)
        .with_hint("'speedbump list --pid PID' prints the lines that would match");
}

std::vector<std::string> unmatched_warnings(const Snapshot& snapshot, const TargetsFile& file) {
    std::vector<std::string> warnings;
    for (const size_t index : snapshot.unmatched_lines) {
        if (index >= file.lines.size()) continue;
        warnings.push_back(line_label(file, file.lines[index]) +
                           ": matches nothing in these processes");
    }
    return warnings;
}

} // namespace speedbump::report
