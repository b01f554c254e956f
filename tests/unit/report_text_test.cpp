// SPDX-License-Identifier: MIT
#include "report/text.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <random>

#include "experiment/analysis.h"
#include "experiment/comparison.h"
#include "report/check.h"
#include "report/discovery.h"
#include "report/experiment.h"
#include "report/gate.h"
#include "report/json.h"
#include "report/json_parts.h"
#include "report/status.h"
#include "report_fixture.h"
#include "targets/matcher.h"
#include "targets/parser.h"
#include "util/text.h"

namespace speedbump::report::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

size_t count_lines(const std::string& text) {
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

Snapshot many_targets(size_t count) {
    Snapshot snapshot = sample_snapshot();
    snapshot.targets.clear();
    snapshot.counts.clear();
    for (size_t i = 0; i < count; i++) {
        snapshot.targets.push_back(native_target(i % 2, "/lib/libmany.so",
                                                 "function_" + std::to_string(i), 16 * i, 16 * i,
                                                 elf::SiteKind::kEmulated, "nop", microseconds(1)));
        snapshot.counts.push_back(
            {static_cast<uint32_t>(i), 100, i, i, microseconds(i), microseconds(i)});
    }
    return snapshot;
}

TEST(Table, AlignsColumnsAndLeavesNoTrailingSpace) {
    Table table({{"N", true}, {"NAME"}, {"NOTE"}});
    table.add_row({"7", "a", ""});
    table.add_row({"1000", "bcd", "x"});
    EXPECT_EQ(table.render({}), "   N  NAME  NOTE\n   7  a\n1000  bcd   x\n");
}

TEST(Table, ShrinksOnlyWhatMayShrink) {
    Table table({{"TARGET", false, true}, {"N", true}});
    table.add_row({"/usr/lib/x86_64-linux-gnu/libverylongname.so.1:function", "123456"});
    Style style;
    style.width = 40;
    const std::string text = table.render(style);
    for (size_t start = 0; start < text.size();) {
        const size_t end = text.find('\n', start);
        EXPECT_LE(end - start, 40u);
        start = end + 1;
    }
    EXPECT_THAT(text, HasSubstr("..."));
    EXPECT_THAT(text, HasSubstr("123456"));
    EXPECT_THAT(text, HasSubstr("function"));
}

TEST(Table, WideCharactersCountTwice) {
    EXPECT_EQ(display_width("ab"), 2u);
    EXPECT_EQ(display_width("é"), 1u);
    EXPECT_EQ(display_width("漢字"), 4u);
    EXPECT_EQ(display_width("\x1b[31mab\x1b[0m"), 2u);
}

TEST(Shorten, KeepsBothEndsWithinTheWidth) {
    EXPECT_EQ(shorten("abcdefghij", 10), "abcdefghij");
    EXPECT_EQ(shorten("abcdefghij", 9), "abc...hij");
    EXPECT_EQ(shorten("abcdefghij", 8), "ab...hij");
}

TEST(Paint, OnlyWithColors) {
    Style style;
    EXPECT_EQ(paint(style, Tone::kBad, "x"), "x");
    style.color = true;
    EXPECT_EQ(paint(style, Tone::kBad, "x"), "\x1b[31mx\x1b[0m");
    EXPECT_EQ(paint(style, Tone::kPlain, "x"), "x");
}

TEST(MatchTable, Golden) {
    expect_golden("match_table.txt", match_table(sample_snapshot(), sample_file(), {}));
}

TEST(MatchTable, ManyTargetsAreSummedUpByLine) {
    Style style;
    style.max_rows = 5;
    const std::string text = match_table(many_targets(1000), sample_file(), style);
    EXPECT_LT(count_lines(text), 15u);
    EXPECT_THAT(text, HasSubstr("1,000 functions matched by 2 lines"));
    EXPECT_THAT(text, HasSubstr("... and 995 more"));
    EXPECT_THAT(text, HasSubstr("  2        500  +exe:processCommand\n"));
}

TEST(LiveTable, Golden) {
    expect_golden("live_table.txt",
                  live_table(earlier_snapshot(), sample_snapshot(), sample_file(), {}));
}

TEST(LiveTable, ManyTargetsStayWithinTheRows) {
    Style style;
    style.max_rows = 4;
    const Snapshot snapshot = many_targets(1000);
    const std::string text = live_table(snapshot, snapshot, sample_file(), style);
    EXPECT_EQ(count_lines(text), 1u + 1 + 4 + 2 + 1);
    EXPECT_THAT(text, HasSubstr("line 2 in all: +exe:processCommand"));
    EXPECT_THAT(text, HasSubstr("all, 999 of 1,000 functions called"));
}

TEST(LiveTable, SaysWhenPaused) {
    Snapshot snapshot = sample_snapshot();
    snapshot.armed = false;
    EXPECT_THAT(live_table(snapshot, snapshot, sample_file(), {}), HasSubstr("paused"));
}

TEST(FinalTable, Golden) {
    expect_golden("final_table.txt", final_table(sample_snapshot(), sample_file(), {}, false));
}

TEST(FinalTable, ByProcessGolden) {
    expect_golden("final_table_processes.txt",
                  final_table(sample_snapshot(), sample_file(), {}, true));
}

TEST(FinalTable, NamesOfProcessesCannotDriveTheTerminal) {
    EXPECT_THAT(final_table(sample_snapshot(), sample_file(), {}, true), Not(HasSubstr("\x1b")));
    EXPECT_THAT(match_table(sample_snapshot(), sample_file(), {}), Not(HasSubstr("\x1b")));
}

TEST(FinalTable, LostCountsAreTold) {
    Snapshot snapshot = sample_snapshot();
    snapshot.lost_counts = 12;
    snapshot.lost_members = 2;
    snapshot.lost_events = 1;
    const std::string text = final_table(snapshot, sample_file(), {}, false);
    EXPECT_THAT(text, HasSubstr("12 calls could not be told apart"));
    EXPECT_THAT(text, HasSubstr("2 processes not delayed, or late"));
    EXPECT_THAT(text, HasSubstr("1 event lost"));
}

TEST(FinalTable, OldCountsAreTold) {
    Snapshot snapshot = sample_snapshot();
    EXPECT_THAT(final_table(snapshot, sample_file(), {}, false), Not(HasSubstr("are old")));
    snapshot.counts_are_old = true;
    EXPECT_THAT(final_table(snapshot, sample_file(), {}, false),
                HasSubstr("calls and delays of native functions are old"));
    EXPECT_THAT(live_table(snapshot, snapshot, sample_file(), {}), HasSubstr("are old"));
}

TEST(FinalTable, NothingCalled) {
    Snapshot snapshot = sample_snapshot();
    snapshot.counts.clear();
    EXPECT_EQ(final_table(snapshot, sample_file(), {}, true),
              "total in 10.0 s: 0 of 3 functions called\n");
}

TEST(Compare, RatesAreOfTheInterval) {
    const ActivityReport report = compare(earlier_snapshot(), sample_snapshot());
    ASSERT_EQ(report.targets.size(), 2u);
    EXPECT_EQ(report.targets[0].target_index, 0u);
    EXPECT_DOUBLE_EQ(report.targets[0].calls_per_second, 50'000);
    EXPECT_DOUBLE_EQ(report.targets[0].cpu_share, 1.0);
    EXPECT_EQ(report.targets[0].since_armed.hits, 52'000u);
    EXPECT_DOUBLE_EQ(report.all.calls_per_second, 50'009);
}

TEST(Compare, NoTimeGivesNoRates) {
    const ActivityReport report = compare(sample_snapshot(), sample_snapshot());
    EXPECT_EQ(report.all.calls_per_second, 0);
    EXPECT_EQ(report.all.cpu_share, 0);
    EXPECT_EQ(report.all.since_armed.hits, 52'009u);
}

TEST(Compare, ACounterThatWentBackwardsCountsNothing) {
    Snapshot now = sample_snapshot();
    now.counts[0].hits = 3;
    now.counts[0].measured = nanoseconds(1);
    const ActivityReport report = compare(earlier_snapshot(), now);
    EXPECT_EQ(report.targets.back().interval.hits, 0u);
    EXPECT_EQ(report.targets.back().interval.measured.count(), 0);
}

TEST(Totals, CountsOfUnknownTargetsAreLeftOut) {
    Snapshot snapshot = sample_snapshot();
    snapshot.counts.push_back({99, 100, 5, 5, seconds(1), seconds(1)});
    EXPECT_EQ(total(totals_by_target(snapshot)).hits, 52'009u);
}

TEST(Warnings, LinesWithoutACall) {
    const std::vector<std::string> warnings = no_hit_warnings(sample_snapshot(), sample_file());
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_THAT(warnings[0], HasSubstr("targets.txt:4: app.views:render: no call in 10.0 s"));
}

TEST(Warnings, NameTheLikelyCauses) {
    Snapshot snapshot = sample_snapshot();
    snapshot.counts.clear();
    const std::vector<std::string> warnings = no_hit_warnings(snapshot, sample_file());
    ASSERT_EQ(warnings.size(), 3u);
    for (const char* cause : {"never called", "inlined", "another file", "name space", "tree"}) {
        EXPECT_THAT(warnings[0], HasSubstr(cause));
    }
}

TEST(Warnings, UnmatchedLines) {
    EXPECT_THAT(unmatched_warnings(sample_snapshot(), sample_file()),
                ElementsAre("targets.txt:5: +libmissing.so:nothing: matches nothing in these "
                            "processes"));
}

TEST(Judge, FollowsThePolicy) {
    using session::MissingPolicy;
    const Snapshot some = sample_snapshot();
    EXPECT_TRUE(judge_matches(some, sample_file(), MissingPolicy::kWarn));
    EXPECT_TRUE(judge_matches(some, sample_file(), MissingPolicy::kIgnore));
    const auto refused = judge_matches(some, sample_file(), MissingPolicy::kError);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::kNothingMatched);
    EXPECT_THAT(refused.error().message, HasSubstr("targets.txt:5"));

    Snapshot none = some;
    none.targets.clear();
    none.nothing_matched = true;
    const auto nothing = judge_matches(none, sample_file(), MissingPolicy::kWarn);
    ASSERT_FALSE(nothing);
    EXPECT_EQ(nothing.error().kind, ErrorKind::kNothingMatched);
    EXPECT_THAT(nothing.error().message, HasSubstr("memcpy: an IFUNC"));
    EXPECT_TRUE(judge_matches(none, sample_file(), MissingPolicy::kIgnore));

    // An interpreter that could not be entered says why, with the kind that is the exit status.
    none.hook_failure = make_error(ErrorKind::kPermission, "its filter does not allow clone");
    for (const MissingPolicy policy : {MissingPolicy::kWarn, MissingPolicy::kError}) {
        const auto shut = judge_matches(none, sample_file(), policy);
        ASSERT_FALSE(shut);
        EXPECT_EQ(shut.error().kind, ErrorKind::kPermission);
        EXPECT_EQ(shut.error().message, "its filter does not allow clone");
    }
    Snapshot half = some;
    half.hook_failure = none.hook_failure;
    EXPECT_TRUE(judge_matches(half, sample_file(), MissingPolicy::kWarn));
}

// A name that a process gave itself.
std::string hostile_name(std::mt19937& random) {
    const auto below = [&](size_t limit) {
        return std::uniform_int_distribution<size_t>(0, limit - 1)(random);
    };
    static const std::vector<std::string> kParts = {"f",
                                                    "a b",
                                                    "\n+libc.so.6:* delay=10s\n",
                                                    "#",
                                                    " #",
                                                    "!",
                                                    "+",
                                                    "@delay=10s",
                                                    "\"",
                                                    "\\",
                                                    "[",
                                                    "]",
                                                    "[a-z]",
                                                    "[!",
                                                    "*",
                                                    "?",
                                                    ":",
                                                    "::",
                                                    "0x12",
                                                    "-/",
                                                    "=/",
                                                    " delay=1s",
                                                    "\r",
                                                    "\r\n",
                                                    "\t",
                                                    "\v",
                                                    "\x1b[2J",
                                                    "\x7f",
                                                    "\xc2\x9b"
                                                    "2J",
                                                    "\xe2\x80\xae",
                                                    "\xff",
                                                    "\xc3",
                                                    "\xef\xbb\xbf",
                                                    "\xc3\xa9",
                                                    "\xe6\xbc\xa2",
                                                    "/",
                                                    ".",
                                                    "<locals>",
                                                    "7",
                                                    "exe",
                                                    "  "};
    std::string name;
    for (size_t part = 1 + below(4); part > 0; --part)
        name += below(6) == 0 ? std::string(1, static_cast<char>(1 + below(255)))
                              : kParts[below(kParts.size())];
    return name;
}

std::string changed(std::string name, std::mt19937& random) {
    name[random() % name.size()] = "xyz"[random() % 3];
    return name;
}

void expect_names(const std::string& text, const std::string& container, const std::string& name,
                  bool is_native, std::mt19937& random) {
    const auto parsed = targets::parse_targets(text, "t");
    ASSERT_TRUE(parsed.errors.empty()) << targets::format_diagnostics(text, parsed.errors);
    ASSERT_EQ(parsed.file.lines.size(), 1u) << text;
    const targets::TargetLine& line = parsed.file.lines[0];
    EXPECT_EQ(speedbump::printable(text), text);
    EXPECT_FALSE(line.exclude);
    EXPECT_FALSE(line.options.delay || line.options.every || line.options.pid) << text;
    EXPECT_FALSE(line.file_offset) << text;
    EXPECT_EQ(line.runtime == targets::Runtime::kNative, is_native) << text;
    EXPECT_TRUE(targets::matches(line.container, container)) << text;
    EXPECT_TRUE(targets::matches(line.name, name)) << text;
    // And no other that differs in a letter.
    for (const auto& [pattern, whole] :
         {std::pair(line.container, container), std::pair(line.name, name)}) {
        const std::string other = changed(whole, random);
        EXPECT_EQ(targets::matches(pattern, other), other == whole) << text << " and " << other;
    }
}

TEST(TargetsLine, OfAnyNameIsOneLineThatNamesIt) {
    std::mt19937 random(11);
    for (int round = 0; round < 20'000; ++round) {
        const std::string container = hostile_name(random), name = hostile_name(random);
        expect_names(python_targets_line(container, name, true), container, name, false, random);
        engine::PythonMatch match;
        match.module = container;
        match.name = name;
        expect_names(targets_line(match), container, name, false, random);
        const std::string path = "/" + container;
        expect_names(targets_line(ListedFunction{path, name, "", 0, 0, false, {}}), path, name,
                     true, random);
        if (::testing::Test::HasFailure()) return;
        const auto ending =
            targets::parse_targets(python_targets_line(container, name, false), "t").file.lines;
        ASSERT_EQ(ending.size(), 1u) << container << ":" << name;
        EXPECT_TRUE(targets::matches(ending[0].name, "Class." + name)) << name;
    }
}

// What `discover -o` and `list` write can be read, whatever the names.
TEST(TargetsLine, FilesOfHostileNamesCanBeRead) {
    std::mt19937 random(12);
    Discovery discovery;
    discover::Survey survey;
    FunctionList list;
    size_t expected = 0;
    for (int function = 0; function < 2'000; ++function) {
        std::string name = hostile_name(random);
        const bool is_too_long = function % 10 == 0;
        // Up to the longest line, and beyond.
        if (function % 5 == 0) name = std::string(is_too_long ? 4096 : 4000 + random() % 80, 'f');
        name += std::to_string(function);
        const stacks::Function python{0, name, "/a.py", 1};
        stacks::Sampled thread;
        thread.pid = thread.tid = getpid();
        discovery.stacks.profile.add(thread, {{&python, nullptr}});
        discover::SurveyedFunction native;
        native.match.path = "/a.so";
        native.match.name = name;
        native.match.entry_offset = static_cast<uint64_t>(function);
        native.calls[1] = 1;
        survey.functions.push_back(native);
        list.native.push_back({"/a.so", name, "", 0, 0, false, function % 3 == 0 ? "no" : ""});
        expected += is_too_long ? 0 : 2;
    }
    discovery.top = 0;
    discovery.survey = survey;
    const std::string targets = discovery_targets(discovery);
    const auto discovered = targets::parse_targets(targets, "t");
    ASSERT_TRUE(discovered.errors.empty()) << targets::format_diagnostics("t", discovered.errors);
    EXPECT_EQ(discovered.file.lines.size(), expected);
    EXPECT_THAT(targets, ::testing::HasSubstr("# 400 more have names that no line can hold"));
    const std::string text = list_text(list);
    const auto listed = targets::parse_targets(text, "t");
    EXPECT_TRUE(listed.errors.empty()) << targets::format_diagnostics("t", listed.errors);
    EXPECT_THAT(text, ::testing::HasSubstr("# 200 more have names that no line can hold"));
}

constexpr const char* kEvil =
    "evil\x1b[2J\xc2\x9b"
    "2J\n\xe2\x80\xae\xff\x7f";

void expect_plain(const std::string& text) {
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        const std::string line = text.substr(at, end - at);
        EXPECT_EQ(speedbump::printable(line), line);
        EXPECT_FALSE(line.starts_with("\xe2\x80\xae"));
        at = end + 1;
    }
    EXPECT_THAT(text, ::testing::HasSubstr("evil\\x1b[2J\\xc2\\x9b2J\\x0a"));
}

TEST(Tables, OfASessionShowNamesAsTheyAre) {
    Snapshot snapshot = sample_snapshot();
    for (session::Target& target : snapshot.targets) {
        target.container = std::string("/") + kEvil;
        target.name = target.site.instruction = target.site.reason = kEvil;
    }
    for (session::ProcessInfo& process : snapshot.processes) process.command = kEvil;
    for (session::SkippedTarget& one : snapshot.skipped)
        one.container = one.name = one.reason = kEvil;
    snapshot.late_files = {kEvil};
    const TargetsFile file = sample_file();
    Style style;
    style.max_rows = 50;
    expect_plain(match_table(snapshot, file, style));
    expect_plain(live_table(earlier_snapshot(), snapshot, file, style));
    expect_plain(final_table(snapshot, file, style, true));
    const auto live = parse_session_json(session_json({}, 1, {}, snapshot, file));
    ASSERT_TRUE(live) << live.error().message;
    expect_plain(status_detail(*live, style));
    LiveSession session = *live;
    session.command = session.engine = session.targets_file = kEvil;
    expect_plain(status_list({session}, {}, style));
}

TEST(Tables, OfAnExperimentShowNamesAsTheyAre) {
    experiment::Document document;
    document.engine = document.stopped = document.host = kEvil;
    document.progress = {kEvil};
    document.warnings = {kEvil};
    document.targets = {{kEvil, {}, {kEvil}, 1, {nanoseconds(1000)}, {kEvil}}};
    document.blocks.resize(4);
    for (experiment::Block& block : document.blocks)
        for (const auto kind : {experiment::ArmKind::kProbe, experiment::ArmKind::kSham,
                                experiment::ArmKind::kDose}) {
            experiment::Slice slice;
            slice.arm = {kind, 0, nanoseconds(1000)};
            slice.length = std::chrono::seconds(1);
            slice.progress = {1000};
            slice.progress_time = {std::chrono::seconds(1)};
            slice.latency = {experiment::Latency{}};
            slice.calls = {1000};
            slice.injected = std::chrono::milliseconds(1);
            block.slices.push_back(slice);
        }
    document.rungs = {{document.targets, document.blocks, {0}, {kEvil}}};
    const auto results = experiment::analyse(document);
    expect_plain(experiment_table(document, results, {}));
    expect_plain(experiment_progress(document, results));
    const auto comparison = experiment::compare(document, document);
    ASSERT_TRUE(comparison);
    expect_plain(comparison_table(*comparison, {}));
    const auto changes = experiment::changes_between(document, document);
    ASSERT_TRUE(changes);
    expect_plain(gate_text(*changes, 0.01, {}));
}

TEST(Tables, OfADiscoveryShowNamesAsTheyAre) {
    Discovery discovery;
    const stacks::Function python{0, kEvil, kEvil, 1};
    stacks::Sampled thread;
    thread.pid = thread.tid = getpid();
    discovery.stacks.profile.add(thread, {{&python, nullptr}});
    discovery.stacks.interpreters = discovery.stacks.notes = discovery.notes = {kEvil};
    discovery.survey.emplace();
    discovery.survey->unmatched = {kEvil};
    discover::SurveyedFunction native;
    native.match.path = std::string("/") + kEvil;
    native.match.name = kEvil;
    discovery.survey->functions = {native};
    native.calls[1] = 1;
    native.match.entry_offset = 1;
    discovery.survey->functions.push_back(native);
    expect_plain(discovery_text(discovery, {}, true));
    CheckReport report;
    report.places = {kEvil};
    process::NativeMatch match = native.match;
    match.line_index = 0;
    match.site.reason = match.site.instruction = kEvil;
    report.matches = {match};
    report.skipped = {{kEvil, kEvil, 0, kEvil}};
    expect_plain(check_text(report, sample_file(), {}, true));
}

TEST(ShownJson, HasNothingThatATerminalWouldObey) {
    const std::string name =
        "caf\xc3\xa9 \x1b[2J \xc2\x9b"
        "2J \x7f \xe2\x80\xae \xe2\x80\xa8 \xff";
    const std::string json = to_line({{"name", name}});
    const std::string shown = shown_json(json);
    EXPECT_EQ(speedbump::printable(shown), shown);
    EXPECT_EQ(nlohmann::json::parse(shown), nlohmann::json::parse(json));
    EXPECT_THAT(shown, ::testing::HasSubstr("caf\xc3\xa9"));
    EXPECT_EQ(shown_json(to_line({{"name", "plain"}})), to_line({{"name", "plain"}}));
}

} // namespace
} // namespace speedbump::report::testing
