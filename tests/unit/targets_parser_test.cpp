// SPDX-License-Identifier: MIT
#include "targets/parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "../cpu_time.h"

namespace speedbump::targets {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::IsEmpty;

ParseOutcome parse(std::string_view text) {
    return parse_targets(text, "t.txt");
}

// The one target of a good text.
TargetLine one_line(std::string_view text) {
    ParseOutcome outcome = parse(text);
    EXPECT_THAT(format_diagnostics("t.txt", outcome.errors), IsEmpty()) << text;
    EXPECT_EQ(outcome.file.lines.size(), 1u) << text;
    return outcome.file.lines.empty() ? TargetLine{} : outcome.file.lines.front();
}

struct GoodLine {
    const char* text;
    Runtime runtime;
    bool exclude;
    const char* container;
    const char* name;
    const char* original;
};

class GoodLines : public testing::TestWithParam<GoodLine> {};

TEST_P(GoodLines, AreParsed) {
    const GoodLine& expected = GetParam();
    const TargetLine line = one_line(expected.text);
    EXPECT_EQ(line.runtime, expected.runtime);
    EXPECT_EQ(line.exclude, expected.exclude);
    EXPECT_EQ(line.container.text, expected.container);
    EXPECT_EQ(line.name.text, expected.name);
    EXPECT_EQ(line.original, expected.original);
}

INSTANTIATE_TEST_SUITE_P(
    Table, GoodLines,
    testing::Values(
        // as the older Python package has them
        GoodLine{"mymodule:foo", Runtime::kPython, false, "mymodule", "foo", "mymodule:foo"},
        GoodLine{"  *transformers*:Llama*.forward \t", Runtime::kPython, false, "*transformers*",
                 "Llama*.forward", "*transformers*:Llama*.forward"},
        GoodLine{"m:outer.<locals>.inner", Runtime::kPython, false, "m", "outer.<locals>.inner",
                 "m:outer.<locals>.inner"},
        GoodLine{"m:<module>", Runtime::kPython, false, "m", "<module>", "m:<module>"},
        GoodLine{"a b : c", Runtime::kPython, false, "a b", "c", "a b : c"},
        GoodLine{"a::b", Runtime::kPython, false, "a", ":b", "a::b"},
        GoodLine{"m:0x12", Runtime::kPython, false, "m", "0x12", "m:0x12"},
        // as the kernel module has them
        GoodLine{"+/usr/bin/app:main", Runtime::kNative, false, "/usr/bin/app", "main",
                 "+/usr/bin/app:main"},
        GoodLine{"+/lib/x.so:foo 1000 pid=12", Runtime::kNative, false, "/lib/x.so", "foo",
                 "+/lib/x.so:foo 1000 pid=12"},
        // the rest of the syntax
        GoodLine{"!m:foo", Runtime::kPython, true, "m", "foo", "!m:foo"},
        GoodLine{"!+libz.so.1:deflate", Runtime::kNative, true, "libz.so.1", "deflate",
                 "!+libz.so.1:deflate"},
        GoodLine{"! + exe : f", Runtime::kNative, true, "exe", "f", "! + exe : f"},
        GoodLine{"m:foo # why", Runtime::kPython, false, "m", "foo", "m:foo"},
        GoodLine{"m:foo\t#why", Runtime::kPython, false, "m", "foo", "m:foo"},
        GoodLine{"m:foo#bar", Runtime::kPython, false, "m", "foo#bar", "m:foo#bar"},
        GoodLine{"m:#bar", Runtime::kPython, false, "m", "#bar", "m:#bar"},
        GoodLine{"a#b:c", Runtime::kPython, false, "a#b", "c", "a#b:c"},
        GoodLine{"+exe:ns::f(int)", Runtime::kNative, false, "exe", "ns::f(int)",
                 "+exe:ns::f(int)"},
        GoodLine{R"x(+exe:"ns::f(int, char # x)" delay=1us)x", Runtime::kNative, false, "exe",
                 "ns::f(int, char # x)", R"x(+exe:"ns::f(int, char # x)" delay=1us)x"},
        GoodLine{R"("C:\\app\\m.py":f)", Runtime::kPython, false, R"(C:\app\m.py)", "f",
                 R"("C:\\app\\m.py":f)"},
        GoodLine{R"(+"/srv/a:b c/\"q\"" : "f g")", Runtime::kNative, false, R"(/srv/a:b c/"q")",
                 "f g", R"(+"/srv/a:b c/\"q\"" : "f g")"},
        GoodLine{R"(+lib.so:operator""_ms*)", Runtime::kNative, false, "lib.so",
                 R"(operator""_ms*)", R"(+lib.so:operator""_ms*)"},
        GoodLine{R"(a\b:c\d)", Runtime::kPython, false, R"(a\b)", R"(c\d)", R"(a\b:c\d)"},
        GoodLine{"\xef\xbb\xbfm:f", Runtime::kPython, false, "m", "f", "m:f"},
        GoodLine{"m\xff:f\xfe", Runtime::kPython, false, "m\xff", "f\xfe", "m\xff:f\xfe"},
        GoodLine{"+*/lib?.so:f", Runtime::kNative, false, "*/lib?.so", "f", "+*/lib?.so:f"},
        GoodLine{"m:delay=1us", Runtime::kPython, false, "m", "delay=1us", "m:delay=1us"}));

TEST(Parser, SkipsEmptyLinesAndComments) {
    const ParseOutcome outcome = parse("\n  \t\r\n# a\n   # b:c d=e\n#\"");
    EXPECT_THAT(outcome.errors, IsEmpty());
    EXPECT_THAT(outcome.file.lines, IsEmpty());
}

TEST(Parser, KeepsOrderAndLineNumbersAndPath) {
    const ParseOutcome outcome = parse("a:b\r\n\r\n+exe:f\r\n!a:b");
    ASSERT_EQ(outcome.file.lines.size(), 3u);
    EXPECT_EQ(outcome.file.path, "t.txt");
    EXPECT_EQ(outcome.file.lines[0].line_number, 1u);
    EXPECT_EQ(outcome.file.lines[0].name.text, "b");
    EXPECT_EQ(outcome.file.lines[1].line_number, 3u);
    EXPECT_EQ(outcome.file.lines[2].line_number, 4u);
}

TEST(Parser, TellsGlobsFromExactPatterns) {
    EXPECT_FALSE(one_line("m:foo").name.is_glob);
    EXPECT_TRUE(one_line("m:f*").name.is_glob);
    EXPECT_TRUE(one_line("m:f?").name.is_glob);
    EXPECT_TRUE(one_line("m:f[ab]").name.is_glob);
    EXPECT_FALSE(one_line("m:f[ab").name.is_glob);
    EXPECT_FALSE(one_line("m:f[]").name.is_glob);
    EXPECT_TRUE(one_line("*:f").container.is_glob);
    EXPECT_TRUE(one_line(R"x(+exe:"f(int, *)")x").name.is_glob);
}

TEST(Parser, ReadsAllOptions) {
    const Options options =
        one_line("m:f delay=10us every=3 start=5s duration=1.5s pid=77 mode=sleep").options;
    EXPECT_EQ(options.delay, 10us);
    EXPECT_EQ(options.every, 3u);
    EXPECT_EQ(options.start, 5s);
    EXPECT_EQ(options.duration, 1500ms);
    EXPECT_EQ(options.pid, 77);
    EXPECT_EQ(options.mode, Mode::kSleep);
    EXPECT_EQ(one_line("m:f mode=spin").options.mode, Mode::kSpin);
    const Options who = one_line("+exe:f caller=ns::g thread=worker-*").options;
    EXPECT_EQ(who.caller->text, "ns::g");
    EXPECT_FALSE(who.caller->is_glob);
    EXPECT_EQ(who.thread->text, "worker-*");
    EXPECT_TRUE(who.thread->is_glob);
    EXPECT_EQ(parse("@thread=io caller=g\n+exe:f caller=h").file.lines[0].options.thread->text,
              "io");
}

TEST(Parser, LeavesOptionsThatAreNotGivenEmpty) {
    const Options options = one_line("m:f").options;
    EXPECT_FALSE(options.delay || options.every || options.start || options.duration ||
                 options.pid || options.mode);
}

TEST(Parser, TakesBareNumberOfNativeLineAsNanoseconds) {
    EXPECT_EQ(one_line("+exe:f 2500").options.delay, 2500ns);
    EXPECT_EQ(one_line("+exe:f pid=3 0").options.delay, 0ns);
    EXPECT_EQ(one_line("+exe:f 10000000000").options.delay, 10s);
}

TEST(Parser, ReadsFileOffsets) {
    EXPECT_EQ(one_line("+exe:0x1a2B").file_offset, 0x1a2bu);
    EXPECT_EQ(one_line("+exe:0xffffffffffffffff 5").file_offset, ~uint64_t{0});
    EXPECT_FALSE(one_line("+exe:x0x1a").file_offset.has_value());
    EXPECT_FALSE(one_line("+exe:0x*").file_offset.has_value());
}

TEST(Parser, FoldsDefaultsIntoLaterLinesOnly) {
    const ParseOutcome outcome = parse(
        "a:b\n"
        "@delay=20us\n"
        "@ every=4 start=1s # both\n"
        "a:c\n"
        "+exe:f 5\n"
        "!a:d\n"
        "@delay=30us\n"
        "a:e every=1");
    EXPECT_THAT(format_diagnostics("t.txt", outcome.errors), IsEmpty());
    const std::vector<TargetLine>& lines = outcome.file.lines;
    ASSERT_EQ(lines.size(), 5u);
    EXPECT_FALSE(lines[0].options.delay.has_value());
    EXPECT_EQ(lines[1].options.delay, 20us);
    EXPECT_EQ(lines[1].options.every, 4u);
    EXPECT_EQ(lines[2].options.delay, 5ns);
    EXPECT_EQ(lines[2].options.start, 1s);
    EXPECT_FALSE(lines[3].options.delay.has_value());
    EXPECT_EQ(lines[4].options.delay, 30us);
    EXPECT_EQ(lines[4].options.every, 1u);
}

struct BadLine {
    const char* text;
    size_t column;
    size_t length;
    const char* message;
    const char* expectation;
};

class BadLines : public testing::TestWithParam<BadLine> {};

TEST_P(BadLines, AreReportedWithTheirPlace) {
    const BadLine& expected = GetParam();
    const ParseOutcome outcome = parse("a:b\n" + std::string(expected.text) + "\nc:d");
    ASSERT_EQ(outcome.errors.size(), 1u) << format_diagnostics("t.txt", outcome.errors);
    const Diagnostic& error = outcome.errors.front();
    EXPECT_EQ(error.line, 2u);
    EXPECT_EQ(error.column, expected.column);
    EXPECT_EQ(error.length, expected.length);
    EXPECT_THAT(error.message, HasSubstr(expected.message));
    EXPECT_THAT(error.expectation, HasSubstr(expected.expectation));
    EXPECT_EQ(error.source_line, expected.text);
    EXPECT_EQ(outcome.file.lines.size(), 2u) << "the lines around it are still read";
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadLines,
    testing::Values(
        BadLine{"foo", 1, 3, "missing ':'", "MODULE:NAME"},
        BadLine{"  foo bar  # x:y", 3, 7, "missing ':'", "MODULE:NAME"},
        BadLine{"!", 1, 1, "missing ':'", "MODULE:NAME"},
        BadLine{"+/bin/x", 1, 7, "missing ':'", "+BINARY:SYMBOL"},
        BadLine{":foo", 1, 1, "Empty module", "'*'"},
        BadLine{"\"\":foo", 1, 2, "Empty module", "'*'"},
        BadLine{"foo:", 4, 1, "Empty name", "qualified name"},
        BadLine{"foo: # x", 4, 1, "Empty name", "qualified name"},
        BadLine{"foo:\"\"", 5, 2, "Empty name", "qualified name"},
        BadLine{"foo: delay=10us", 4, 1, "Empty name", "qualified name"},
        BadLine{"+:f", 2, 1, "Empty binary", "'exe'"},
        BadLine{"+exe:", 5, 1, "Empty name", "symbol"},
        BadLine{"+exe: 500", 5, 1, "Empty name", "symbol"},
        BadLine{"+ns::f", 5, 2, "starts with ':'", "+exe:ns::function"},
        BadLine{"+lib/x.so:f", 2, 8, "relative path", "'*/lib/x.so'"},
        BadLine{"+./x:f", 2, 3, "relative path", "absolute path"},
        BadLine{"+exe:0x", 6, 2, "bad file offset", "hexadecimal"},
        BadLine{"+exe:0x12g", 6, 5, "bad file offset", "hexadecimal"},
        BadLine{"+exe:0x1ffffffffffffffff", 6, 19, "bad file offset", "hexadecimal"},
        BadLine{"-/bin/x:f", 1, 1, "'-' is not a command", "!+BINARY"},
        BadLine{"=/bin/x:f 5", 1, 1, "'=' is not a command", "!+BINARY"},
        BadLine{"\"foo:bar", 1, 1, "never closed", "'\"'"},
        BadLine{"foo:\"bar # x", 5, 1, "never closed", "'\"'"},
        BadLine{R"(foo:"b\n")", 7, 2, "unknown escape", R"(\\ for a backslash)"},
        BadLine{"\"foo\"x:bar", 6, 5, "after the closing quote", "':'"},
        BadLine{"foo:\"bar\"x", 10, 1, "after the closing quote", "white space"},
        BadLine{"!foo:bar delay=1us", 10, 9, "after an exclusion", "no options"},
        BadLine{"foo:bar dely=10us", 9, 9, "unknown option 'dely=10us'", "delay="},
        BadLine{"foo:bar delay=10 us", 18, 2, "unknown option 'us'", "no space"},
        BadLine{"foo:bar delay = 10us", 9, 5, "has no value", "delay=VALUE"},
        BadLine{"foo:bar delay=", 9, 6, "missing duration", "10us"},
        BadLine{"foo:bar delay=10m", 15, 3, "no known unit", "ns, us, ms or s"},
        BadLine{"foo:bar delay=-1us", 15, 4, "is not a duration", "10us"},
        BadLine{"foo:bar delay=1e3", 15, 3, "no known unit", "ns, us, ms or s"},
        BadLine{"foo:bar delay=10.000001s", 15, 10, "more than 10s", "0 to 10s"},
        BadLine{"foo:bar start=99999999999s", 15, 12, "too long", "10us"},
        BadLine{"foo:bar delay=1us delay=2us", 19, 9, "delay is given twice", "at most once"},
        BadLine{"+exe:f 5 delay=2us", 10, 9, "delay is given twice", "at most once"},
        BadLine{"+exe:f 5 6", 10, 1, "delay is given twice", "at most once"},
        BadLine{"+exe:f 10000000001", 8, 11, "more than 10s", "nanoseconds"},
        BadLine{"+exe:f 99999999999999999999999", 8, 23, "more than 10s", "nanoseconds"},
        BadLine{"foo:bar 500", 9, 3, "bare number '500'", "delay=500ns"},
        BadLine{"foo:bar every=0", 15, 1, "bad every", "every=10"},
        BadLine{"foo:bar mode=doze", 14, 4, "bad mode", "mode=spin or mode=sleep"},
        BadLine{"+exe:f caller=", 8, 7, "caller= has no value", "glob of a native function"},
        BadLine{"+exe:f thread=", 8, 7, "thread= has no value", "a thread's name"},
        BadLine{"+exe:f thread=xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", 15, 56,
                "is too long", "at most 55 bytes"},
        BadLine{"+exe:f thread=a thread=b", 17, 8, "thread is given twice", "at most once"},
        BadLine{"foo:bar every=1.5", 15, 3, "bad every", "every=10"},
        BadLine{"foo:bar every=18446744073709551616", 15, 20, "bad every", "every=10"},
        BadLine{"foo:bar pid=", 9, 4, "bad pid", "process id"},
        BadLine{"foo:bar pid=0", 13, 1, "bad pid", "process id"},
        BadLine{"foo:bar pid=-4", 13, 2, "bad pid", "process id"},
        BadLine{"foo:bar pid=4294967297", 13, 10, "bad pid", "process id"},
        BadLine{"+exe:ns::f(int, char, int) delay=1us", 17, 5, "unexpected", "quotes"},
        BadLine{"+exe:g<int, int>", 13, 4, "unexpected", "quotes"},
        BadLine{"@", 1, 1, "'@' without an option", "@delay=20us"},
        BadLine{"@ # x", 1, 1, "'@' without an option", "@delay=20us"},
        BadLine{"@delay", 2, 5, "has no value", "delay=VALUE"},
        BadLine{"@500", 2, 3, "bare number", "delay=500ns"},
        BadLine{"\tf\xc3\xb6\xc3\xb6:x y", 10, 1, "unknown option 'y'", "delay="}));

TEST(Parser, ReportsAllErrorsOfAFile) {
    const ParseOutcome outcome = parse(
        "foo\n"
        "a:b every=0 delay=x bogus\n"
        ":\n"
        "c:d\n"
        "@pid=x\n");
    std::vector<std::pair<size_t, size_t>> places;
    for (const Diagnostic& error : outcome.errors) places.emplace_back(error.line, error.column);
    using testing::ElementsAre;
    using testing::Pair;
    EXPECT_THAT(places, ElementsAre(Pair(1, 1), Pair(2, 11), Pair(2, 19), Pair(2, 21), Pair(3, 1),
                                    Pair(3, 1), Pair(5, 6)));
}

TEST(Parser, DefaultsWithAnErrorChangeNothing) {
    const ParseOutcome outcome = parse("@delay=5us every=0\na:b");
    ASSERT_EQ(outcome.file.lines.size(), 1u);
    EXPECT_FALSE(outcome.file.lines[0].options.delay.has_value());
}

TEST(Parser, RefusesNulBytes) {
    const ParseOutcome outcome = parse(std::string_view("a:b\nm:f\0g\n", 10));
    ASSERT_EQ(outcome.errors.size(), 1u);
    EXPECT_EQ(outcome.errors[0].line, 2u);
    EXPECT_EQ(outcome.errors[0].column, 4u);
    EXPECT_THAT(outcome.errors[0].message, HasSubstr("NUL byte"));
}

TEST(Parser, RefusesNulBytesInComments) {
    EXPECT_EQ(parse(std::string_view("# a\0b", 5)).errors.size(), 1u);
}

TEST(Parser, LimitsLinesTo4096Bytes) {
    const std::string longest = "m:" + std::string(kMaxLineBytes - 2, 'f');
    EXPECT_EQ(one_line(longest).name.text.size(), kMaxLineBytes - 2);
    EXPECT_EQ(one_line(longest + "\r\n").name.text.size(), kMaxLineBytes - 2);
    const ParseOutcome outcome = parse(longest + "f");
    ASSERT_EQ(outcome.errors.size(), 1u);
    EXPECT_EQ(outcome.errors[0].column, kMaxLineBytes + 1);
    EXPECT_THAT(outcome.errors[0].message, HasSubstr("4097 bytes is too long"));
    EXPECT_EQ(parse("#" + std::string(kMaxLineBytes, ' ')).errors.size(), 1u);
}

TEST(Parser, BoundsTheNumberOfErrorsThatItKeeps) {
    std::string text;
    for (int line = 0; line < 30'000; ++line) text += "x\n";
    const ParseOutcome outcome = parse(text);
    ASSERT_EQ(outcome.errors.size(), 10'001u);
    EXPECT_THAT(outcome.errors.back().message, HasSubstr("20000 more are not listed"));
    std::string many_options = "a:b";
    for (int option = 0; option < 1'000; ++option) many_options += " x";
    EXPECT_EQ(parse(many_options).errors.size(), 16u);
}

TEST(Parser, ReadsSixteenMebibytesInSeconds) {
    std::string text;
    while (text.size() < kMaxFileBytes - 64) text += "+*libfoo*.so:*some_function* delay=1us\n";
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    const auto limit = 200s; // sanitizers make it some twenty times slower
#else
    const auto limit = 20s;
#endif
    const auto begin = CpuClock::now();
    EXPECT_THAT(parse(text).errors, IsEmpty());
    EXPECT_LT(CpuClock::now() - begin, limit);
}

// Golden output: what a user sees.
TEST(Diagnostics, LookLikeThis) {
    const ParseOutcome outcome = parse(
        "@delay=20us\n"
        "\tm\xc3\xb6"
        "dul:f\xe6\xbc\xa2 delay=10kg pid=1 # odd\n"
        "m\xff\x1b[31m:f bogus\n"
        "nothing\r\n");
    EXPECT_EQ(
        format_diagnostics("dir/t.txt", outcome.errors),
        "dir/t.txt:2:20: error: bad delay: '10kg' has no known unit\n"
        "    \tm\xc3\xb6"
        "dul:f\xe6\xbc\xa2 delay=10kg pid=1 # odd\n"
        "    \t                ^~~~\n"
        "    expected: ns, us, ms or s, as in 10us\n"
        "dir/t.txt:3:11: error: unknown option 'bogus'\n"
        "    m\\xff\\x1b[31m:f bogus\n"
        "                    ^~~~~\n"
        "    expected: one of delay=, every=, start=, duration=, pid=, mode=, caller=, thread=, "
        "with no space around the '='\n"
        "dir/t.txt:4:1: error: missing ':' separator\n"
        "    nothing\n"
        "    ^~~~~~~\n"
        "    expected: MODULE:NAME, or +BINARY:SYMBOL for a native target\n");
}

TEST(Diagnostics, CutLongLinesAroundTheCaret) {
    const std::string line = std::string(1'000, 'm') + ":f " + std::string(500, 'x');
    const ParseOutcome outcome = parse(line);
    ASSERT_EQ(outcome.errors.size(), 1u);
    EXPECT_EQ(outcome.errors[0].column, 1'004u);
    EXPECT_EQ(format_diagnostic("t", outcome.errors[0]),
              "t:1:1004: error: unknown option '" + std::string(60, 'x') + "...'\n" + "    ..." +
                  std::string(97, 'm') + ":f " + std::string(120, 'x') + "...\n" + "       " +
                  std::string(100, ' ') + "^" + std::string(119, '~') + "\n" +
                  "    expected: one of delay=, every=, start=, duration=, pid=, mode=, caller=, "
                  "thread=, "
                  "with no space around the '='\n");
}

TEST(Diagnostics, PointBehindTheEndOfAnOverlongLine) {
    const ParseOutcome outcome = parse(std::string(kMaxLineBytes + 1, 'x'));
    ASSERT_EQ(outcome.errors.size(), 1u);
    EXPECT_THAT(format_diagnostic("t", outcome.errors[0]),
                HasSubstr("\n    ..." + std::string(101, 'x') + "\n       " +
                          std::string(100, ' ') + "^\n"));
}

// The code blocks of the user's manual.
TEST(Manual, ShowsWhatTheParserSays) {
    std::ifstream manual(SPEEDBUMP_SOURCE_DIR "/docs/targets-file.md");
    std::vector<std::string> blocks;
    bool inside = false;
    for (std::string line; std::getline(manual, line);) {
        if (line == "```") {
            inside = !inside;
            if (inside) blocks.emplace_back();
        } else if (inside) {
            blocks.back() += line + "\n";
        }
    }
    ASSERT_EQ(blocks.size(), 2u);
    const ParseOutcome example = parse(blocks[0]);
    EXPECT_THAT(format_diagnostics("t", example.errors), IsEmpty());
    EXPECT_EQ(example.file.lines.size(), 6u);
    const ParseOutcome bad = parse("\n\n+libsqlite3.so*:sqlite3_step delay=10kg\n");
    EXPECT_EQ(format_diagnostics("targets.txt", bad.errors), blocks[1]);
}

struct GoodDuration {
    const char* text;
    nanoseconds value;
};

class GoodDurations : public testing::TestWithParam<GoodDuration> {};

TEST_P(GoodDurations, AreParsed) {
    const Result<nanoseconds> duration = parse_duration(GetParam().text);
    ASSERT_TRUE(duration.has_value()) << GetParam().text << ": " << duration.error().message;
    EXPECT_EQ(*duration, GetParam().value) << GetParam().text;
}

INSTANTIATE_TEST_SUITE_P(
    Table, GoodDurations,
    testing::Values(GoodDuration{"0", 0ns}, GoodDuration{"1000", 1us}, GoodDuration{"250ns", 250ns},
                    GoodDuration{"10us", 10us}, GoodDuration{"10\u00b5s", 10us},
                    GoodDuration{"10\u03bcs", 10us}, GoodDuration{"2.5ms", 2500us},
                    GoodDuration{".5s", 500ms}, GoodDuration{"0.000000001s", 1ns},
                    GoodDuration{"0.3333333333333333333us", 333ns}, GoodDuration{"1.5ns", 2ns},
                    GoodDuration{"0.9999999999s", 1s}, GoodDuration{"007us", 7us},
                    GoodDuration{"9000000000s", 9'000'000'000s}));

TEST(Durations, RefuseWhatIsNone) {
    for (const char* text :
         {"",       "us",    ".",    "1.",          "1.us",
          "-1",     "+1",    " 1",   "1 ",          "1 us",
          "1US",    "1,5us", "0x10", "inf",         "nan",
          "1e3",    "1m",    "1h",   "9300000000s", "99999999999999999999999999999",
          "1\xb5s", "1usx"}) {
        const Result<nanoseconds> duration = parse_duration(text);
        ASSERT_FALSE(duration.has_value()) << text;
        EXPECT_FALSE(duration.error().hint.empty()) << text;
    }
}

TEST(Durations, AreWrittenShortAndExact) {
    const std::pair<nanoseconds, const char*> table[] = {
        {0ns, "0ns"},
        {1ns, "1ns"},
        {250ns, "250ns"},
        {10us, "10us"},
        {1500us, "1.5ms"},
        {100us, "100us"},
        {1s, "1s"},
        {10s, "10s"},
        {123456ns, "123456ns"},
        {1230ns, "1.23us"},
        {1'000'000'001ns, "1.000000001s"},
        {90s, "90s"},
    };
    for (const auto& [duration, text] : table) {
        EXPECT_EQ(format_duration(duration), text);
        EXPECT_EQ(*parse_duration(text), duration);
    }
}

// Files with every property that can go wrong.
class Load : public testing::Test {
  protected:
    void SetUp() override {
        std::string name = testing::TempDir() + "targets_XXXXXX";
        ASSERT_NE(::mkdtemp(name.data()), nullptr);
        directory_ = name;
    }
    void TearDown() override { std::filesystem::remove_all(directory_); }
    std::string file(std::string_view content) {
        const std::string path = directory_ / "targets.txt";
        std::ofstream(path, std::ios::binary) << content;
        return path;
    }
    // The message of the error that loading gives.
    std::string error_of(const std::string& path) {
        const Result<TargetsFile> result = load_targets(path);
        if (result) return "no error";
        EXPECT_EQ(result.error().kind, ErrorKind::kTargetsFile);
        return result.error().message;
    }
    std::filesystem::path directory_;
};

TEST_F(Load, ReadsAGoodFile) {
    const std::string path = file("@delay=5us\r\nm:f\r\n+exe:g 10");
    const Result<TargetsFile> result = load_targets(path);
    ASSERT_TRUE(result.has_value()) << result.error().message;
    EXPECT_EQ(result->path, path);
    ASSERT_EQ(result->lines.size(), 2u);
    EXPECT_EQ(result->lines[1].name.text, "g");
}

TEST_F(Load, ReadsAnEmptyFile) {
    const Result<TargetsFile> result = load_targets(file(""));
    ASSERT_TRUE(result.has_value());
    EXPECT_THAT(result->lines, IsEmpty());
}

TEST_F(Load, ReportsAllBadLines) {
    const std::string message = error_of(file("x\nm:f\ny\n"));
    EXPECT_THAT(message, HasSubstr("targets.txt:1:1: error: missing ':'"));
    EXPECT_THAT(message, HasSubstr("targets.txt:3:1: error: missing ':'"));
}

TEST_F(Load, KeepsTheErrnoOfAMissingFile) {
    const Result<TargetsFile> result = load_targets(directory_ / "none");
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().error_number, ENOENT);
    EXPECT_THAT(result.error().message, HasSubstr("none': open: No such file or directory"));
}

TEST_F(Load, RefusesWhatIsNoRegularFile) {
    EXPECT_THAT(error_of(directory_), HasSubstr("is not a regular file"));
    EXPECT_THAT(error_of("/dev/zero"), HasSubstr("is not a regular file"));
    const std::string fifo = directory_ / "fifo";
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    EXPECT_THAT(error_of(fifo), HasSubstr("is not a regular file"));
}

TEST_F(Load, RefusesFilesOver16MiB) {
    const std::string path = file("");
    std::filesystem::resize_file(path, kMaxFileBytes + 1);
    EXPECT_THAT(error_of(path), HasSubstr("larger than 16 MiB"));
}

TEST_F(Load, AcceptsAFileOfExactly16MiB) {
    std::string text(kMaxFileBytes, '\n');
    EXPECT_TRUE(load_targets(file(text)).has_value());
}

TEST_F(Load, ReadsFilesThatStateNoSize) {
    EXPECT_THAT(error_of("/proc/self/stat"), HasSubstr("missing ':'"));
}

TEST_F(Load, ReportsAnUnreadableFile) {
    const std::string path = file("m:f");
    ASSERT_EQ(::chmod(path.c_str(), 0), 0);
    ASSERT_EQ(::chmod(directory_.c_str(), 0755), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        if (::getuid() == 0 && ::setuid(65534) != 0) ::_exit(2);
        const Result<TargetsFile> result = load_targets(path);
        ::_exit(!result && result.error().error_number == EACCES &&
                        result.error().kind == ErrorKind::kTargetsFile
                    ? 0
                    : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

TEST_F(Load, RefusesABinaryFile) {
    std::string program(65'536, '\0');
    ASSERT_TRUE(std::ifstream("/proc/self/exe", std::ios::binary)
                    .read(program.data(), static_cast<std::streamsize>(program.size())));
    const std::string message = error_of(file(program));
    EXPECT_THAT(message, HasSubstr("targets.txt:1:"));
    EXPECT_THAT(message, HasSubstr("error: NUL byte"));
}

} // namespace
} // namespace speedbump::targets
