// SPDX-License-Identifier: MIT
#include "report/text.h"

#include <gmock/gmock.h>

#include "report_fixture.h"

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

} // namespace
} // namespace speedbump::report::testing
