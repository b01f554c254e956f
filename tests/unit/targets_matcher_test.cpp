// SPDX-License-Identifier: MIT
#include "targets/matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "../cpu_time.h"
#include "targets/parser.h"

namespace speedbump::targets {
namespace {

struct GlobCase {
    const char* pattern;
    const char* text;
    bool matches;
};

class Globs : public testing::TestWithParam<GlobCase> {};

TEST_P(Globs, Match) {
    EXPECT_EQ(glob_match(GetParam().pattern, GetParam().text), GetParam().matches)
        << GetParam().pattern << " against " << GetParam().text;
}

INSTANTIATE_TEST_SUITE_P(
    Table, Globs,
    testing::Values(
        GlobCase{"", "", true}, GlobCase{"", "a", false}, GlobCase{"a", "", false},
        GlobCase{"abc", "abc", true}, GlobCase{"abc", "ABC", false}, GlobCase{"abc", "abcd", false},
        GlobCase{"*", "", true}, GlobCase{"**", "", true}, GlobCase{"*", "a/b.c::d", true},
        GlobCase{"a*", "a", true}, GlobCase{"*c", "abc", true}, GlobCase{"*c", "abcd", false},
        GlobCase{"a*c", "ac", true}, GlobCase{"a*c", "abcbc", true}, GlobCase{"a*c", "abcb", false},
        GlobCase{"*a*b*c*", "xxaxxbxxcxx", true}, GlobCase{"*a*b*c*", "xxaxxcxxbxx", false},
        GlobCase{"*/numpy/*", "/usr/lib/numpy/core/x.py", true}, GlobCase{"?", "", false},
        GlobCase{"?", "a", true}, GlobCase{"?", "ab", false}, GlobCase{"a?c", "a/c", true},
        GlobCase{"*?", "", false}, GlobCase{"*?", "abc", true}, GlobCase{"[abc]", "b", true},
        GlobCase{"[abc]", "d", false}, GlobCase{"[abc]", "", false}, GlobCase{"[!abc]", "d", true},
        GlobCase{"[!abc]", "a", false}, GlobCase{"[^a]", "^", true}, GlobCase{"[^a]", "b", false},
        GlobCase{"[a-c]x", "bx", true}, GlobCase{"[a-c]x", "dx", false},
        GlobCase{"[!a-c]", "b", false}, GlobCase{"[a-ce-g]", "f", true},
        GlobCase{"[a-ce-g]", "d", false}, GlobCase{"[c-a]", "b", false},
        GlobCase{"[a-]", "-", true}, GlobCase{"[-a]", "-", true}, GlobCase{"[]]", "]", true},
        GlobCase{"[!]]", "]", false}, GlobCase{"[!]]", "x", true}, GlobCase{"[]a]b", "ab", true},
        GlobCase{"[*]", "*", true}, GlobCase{"[*]", "x", false}, GlobCase{"[?]", "?", true},
        GlobCase{"[[]", "[", true}, GlobCase{"[", "[", true}, GlobCase{"[a", "[a", true},
        GlobCase{"[a", "a", false}, GlobCase{"[]", "[]", true}, GlobCase{"[!]", "[!]", true},
        GlobCase{"*[", "a[", true}, GlobCase{"*[]", "a[]", true}, GlobCase{"*[]b", "a[]b", true},
        GlobCase{"a[!", "a[!", true}, GlobCase{"*[ab]*[", "xaxbx[", true},
        GlobCase{"\\*", "*", false}, GlobCase{"\\*", "\\x", true},
        // characters, not bytes
        GlobCase{"?", "\u00e4", true}, GlobCase{"??", "\u00e4", false},
        GlobCase{"[\u00e4\u00f6]", "\u00f6", true}, GlobCase{"[!\u00e4]", "\u00f6", true},
        GlobCase{"[\u00e0-\u00ef]", "\u00e9", true}, GlobCase{"[\u00e0-\u00ef]", "e", false},
        GlobCase{"*\u6f22", "x\u5b57\u6f22", true},
        GlobCase{"?\xff?",
                 "a\xff"
                 "b",
                 true},
        GlobCase{"[\xfe-\xff]", "\xff", true}, GlobCase{"\xc3", "\u00e4", false},
        GlobCase{"*\xa4", "\u00e4", false}));

// A matcher that is wrong in no interesting way: by definition, in exponential time.
bool slow_match(std::string_view pattern, std::string_view text) {
    if (pattern.empty()) return text.empty();
    if (pattern[0] == '*') {
        return slow_match(pattern.substr(1), text) ||
               (!text.empty() && slow_match(pattern, text.substr(1)));
    }
    return !text.empty() && (pattern[0] == '?' || pattern[0] == text[0]) &&
           slow_match(pattern.substr(1), text.substr(1));
}

std::string nth_word(size_t number, std::string_view alphabet, size_t length) {
    std::string word;
    for (; length > 0; --length, number /= alphabet.size()) {
        word += alphabet[number % alphabet.size()];
    }
    return word;
}

TEST(Glob, AgreesWithTheDefinitionOnAllShortWords) {
    for (size_t pattern_number = 0; pattern_number < 4 * 4 * 4 * 4 * 4; ++pattern_number) {
        const std::string pattern = nth_word(pattern_number, "ab*?", 5);
        for (size_t text_number = 0; text_number < 2 * 2 * 2 * 2 * 2 * 2; ++text_number) {
            const std::string text = nth_word(text_number, "ab", 6);
            ASSERT_EQ(glob_match(pattern, text), slow_match(pattern, text))
                << pattern << " against " << text;
        }
    }
}

TEST(Glob, TakesNoExponentialTime) {
    std::string many_stars;
    for (int count = 0; count < 300; ++count) many_stars += "*a";
    std::string many_sets;
    for (int count = 0; count < 300; ++count) many_sets += "*[a-b]";
    const std::string text(5'000, 'a');
    const auto begin = CpuClock::now();
    EXPECT_FALSE(glob_match(many_stars + "b", text));
    EXPECT_FALSE(glob_match(many_sets + "[!a]", text));
    EXPECT_FALSE(glob_match("*" + std::string(2'000, '[') + "x", std::string(5'000, '[')));
    EXPECT_FALSE(glob_match("*[" + std::string(2'000, 'b') + "]x", text));
    EXPECT_LT(CpuClock::now() - begin, std::chrono::seconds(20));
}

TEST(Glob, IsRecognised) {
    for (const char* text : {"*", "a?", "[a]", "x[!b]", "[]]"}) EXPECT_TRUE(has_glob(text)) << text;
    for (const char* text : {"", "abc", "[", "[a", "[]", "[!]", "a]b["}) {
        EXPECT_FALSE(has_glob(text)) << text;
    }
}

TEST(Patterns, MatchExactlyAlsoWhatLooksLikeAGlob) {
    EXPECT_TRUE(matches({"V::operator[](int, int[2])", true}, "V::operator[](int, int[2])"));
    EXPECT_FALSE(matches({"f*", false}, "foo"));
    EXPECT_TRUE(matches({"f*", true}, "foo"));
}

TargetLine line_of(std::string_view text) {
    ParseOutcome outcome = parse_targets(text, "t");
    EXPECT_TRUE(outcome.errors.empty()) << format_diagnostics("t", outcome.errors);
    return outcome.file.lines.at(0);
}

TEST(Binary, IsMatchedByPathFileNameSonameAndRole) {
    const BinaryIdentity library{"/usr/lib/x86_64-linux-gnu/libsqlite3.so.0.8.6", "libsqlite3.so.0",
                                 false};
    const BinaryIdentity program{"/opt/app/exe", "", true};
    const BinaryIdentity nameless{"", "", false};
    const auto named = [](const char* binary, const BinaryIdentity& identity) {
        return binary_matches(line_of("+" + std::string(binary) + ":f").container, identity);
    };
    EXPECT_TRUE(named("/usr/lib/x86_64-linux-gnu/libsqlite3.so.0.8.6", library));
    EXPECT_FALSE(named("/usr/lib/x86_64-linux-gnu/libsqlite3.so.0", library));
    EXPECT_TRUE(named("/usr/lib/*/libsqlite3*", library));
    EXPECT_TRUE(named("*/libsqlite3*", library));
    EXPECT_FALSE(named("*/sqlite3*", library));
    EXPECT_TRUE(named("libsqlite3.so.0.8.6", library));
    EXPECT_TRUE(named("libsqlite3.so.0", library));
    EXPECT_TRUE(named("libsqlite3.so*", library));
    EXPECT_FALSE(named("libsqlite3", library));
    EXPECT_FALSE(named("exe", library));
    EXPECT_TRUE(named("*", library));
    EXPECT_FALSE(named("/usr/*", program));
    EXPECT_TRUE(named("exe", program));
    EXPECT_FALSE(named("exe", {"/opt/lib/exe", "exe", false}))
        << "'exe' means the main executable, not a file of that name";
    EXPECT_FALSE(named("*", nameless));
}

TEST(Symbol, IsMatchedByEachNameOrTheOffset) {
    const FunctionNames function{{"_ZN2ns1fEi", "ns::f(int)", "ns::f"}, 0x1230};
    for (const char* symbol : {"_ZN2ns1fEi", "ns::f(int)", "ns::f", "ns::*", "*f", "0x1230"}) {
        EXPECT_TRUE(symbol_matches(line_of("+exe:" + std::string(symbol)), function)) << symbol;
    }
    for (const char* symbol : {"f", "ns::f(long)", "NS::f", "0x1231"}) {
        EXPECT_FALSE(symbol_matches(line_of("+exe:" + std::string(symbol)), function)) << symbol;
    }
}

struct PythonCase {
    const char* line;
    const char* module;
    const char* path;
    const char* name;
    bool matches;
};

class Python : public testing::TestWithParam<PythonCase> {};

TEST_P(Python, IsMatchedByModuleOrPathAndName) {
    const PythonCase& c = GetParam();
    EXPECT_EQ(python_matches(line_of(c.line), c.module, c.path, c.name), c.matches) << c.line;
}

INSTANTIATE_TEST_SUITE_P(
    Table, Python,
    testing::Values(
        PythonCase{"app.views:index", "app.views", "/srv/app/views.py", "index", true},
        PythonCase{"/srv/app/views.py:index", "app.views", "/srv/app/views.py", "index", true},
        PythonCase{"*/app/*:index", "app.views", "/srv/app/views.py", "index", true},
        PythonCase{"app:index", "app.views", "/srv/app/views.py", "index", false},
        PythonCase{"app*:index", "app.views", "/srv/app/views.py", "index", true},
        PythonCase{"app.views:Index", "app.views", "/srv/app/views.py", "index", false},
        PythonCase{"__main__:main", "__main__", "/srv/x.py", "main", true},
        PythonCase{"*:Bar.baz", "m", "/m.py", "Bar.baz", true},
        PythonCase{"*:baz", "m", "/m.py", "Bar.baz", false}, PythonCase{"*:*", "", "", "f", true},
        PythonCase{"m:f", "", "/m.py", "f", false}, PythonCase{"/m.py:f", "", "/m.py", "f", true},
        PythonCase{"m:outer.<locals>.*", "m", "", "outer.<locals>.inner", true},
        PythonCase{"+m:f", "m", "", "f", false}));

TEST(Decision, IsTheLastMatchingLines) {
    const ParseOutcome outcome = parse_targets(
        "m:* delay=1us\n"
        "!m:secret*\n"
        "m:secret_but_slow delay=2us\n"
        "+m:f\n"
        "!*/excluded/*:*\n",
        "t");
    const TargetsFile& file = outcome.file;
    EXPECT_EQ(decide_python(file, "m", "/m.py", "f"), &file.lines[0]);
    EXPECT_EQ(decide_python(file, "m", "/m.py", "secret_x"), nullptr);
    EXPECT_EQ(decide_python(file, "m", "/m.py", "secret_but_slow"), &file.lines[2]);
    EXPECT_EQ(decide_python(file, "m", "/excluded/m.py", "f"), nullptr);
    EXPECT_EQ(decide_python(file, "n", "/n.py", "f"), nullptr);
}

// The quick way and the plain one agree on random lines and functions.
TEST(PythonLines, DecideAsTheFileDoes) {
    std::mt19937 random(5);
    const std::vector<std::string> texts = {"a",    "b",     "a.b", "a*",  "*",
                                            "[ab]", "?",     "",    "*.b", "a.*",
                                            "a.b*", "a[.]b", "a[",  "ab*", "\xc3\xa4*"};
    const auto pick = [&] { return texts[random() % texts.size()]; };
    size_t matched = 0;
    for (int round = 0; round < 500; ++round) {
        TargetsFile file;
        for (size_t i = random() % 12; i > 0; --i) {
            TargetLine line;
            const auto pattern = [&] {
                const std::string text = pick();
                return Pattern{text, has_glob(text)};
            };
            line.container = pattern();
            line.name = pattern();
            line.exclude = random() % 4 == 0;
            if (random() % 5 == 0) line.runtime = Runtime::kNative;
            file.lines.push_back(line);
        }
        const PythonLines lines(file.lines);
        for (int i = 0; i < 20; ++i) {
            const std::string module = pick(), path = pick(), name = pick();
            const TargetLine* expected = decide_python(file, module, path, name);
            const auto index = lines.decide(module, path, name);
            const bool excluded = index && lines.lines()[*index].exclude;
            ASSERT_EQ(expected != nullptr, index && !excluded);
            if (expected == nullptr) continue;
            ++matched;
            ASSERT_EQ(static_cast<size_t>(expected - file.lines.data()), *index);
        }
    }
    EXPECT_GT(matched, 1000u);
}

// The CPU time of 2,000 decisions, of as many lines for each of these modules.
CpuClock::duration time_of_decisions(size_t modules) {
    std::vector<TargetLine> lines;
    const auto add = [&lines](const std::string& container, const std::string& name) {
        TargetLine line;
        line.container = {container, has_glob(container)};
        line.name = {name, true};
        lines.push_back(std::move(line));
    };
    for (size_t module = 0; module < modules; ++module) {
        const std::string name = "package.m" + std::to_string(100000 + module);
        add(name, "*");
        add(name + ".*", "*");
        add(name, "Handler.*");
    }
    const PythonLines deciding(std::move(lines));
    CpuClock::duration best = CpuClock::duration::max();
    for (int round = 0; round < 5; ++round) {
        const auto begun = CpuClock::now();
        for (size_t i = 0; i < 1000; ++i) {
            const std::string module = "package.m" + std::to_string(100000 + i % 50);
            EXPECT_EQ(deciding.decide(module, "/srv/m.py", "Handler.get"), i % 50 * 3 + 2);
            EXPECT_EQ(deciding.decide(module + ".sub", "/srv/m.py", "f"), i % 50 * 3 + 1);
        }
        best = std::min(best, CpuClock::now() - begun);
    }
    return best;
}

// Of thousands of lines only those that begin as a function's names do are tried.
TEST(PythonLines, DecideInATimeThatDoesNotGrowWithTheLines) {
    EXPECT_LT(time_of_decisions(10000), 20 * time_of_decisions(50)); // 200 times the lines
}

} // namespace
} // namespace speedbump::targets
