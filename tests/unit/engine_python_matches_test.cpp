// SPDX-License-Identifier: MIT
#include "engine/python/python_matches.h"

#include <gtest/gtest.h>

namespace speedbump::engine {
namespace {

// `count` functions from the number `first` on.
std::vector<PythonMatch> some(size_t count, size_t first = 0, const std::string& text = "") {
    std::vector<PythonMatch> matches;
    for (size_t i = first; i < first + count; ++i)
        matches.push_back({7, 0, "module" + text, std::to_string(i) + text, "file" + text});
    return matches;
}

TEST(PythonMatches, WhatSeveralProcessesTellIsKeptOnce) {
    PythonMatches matches;
    EXPECT_EQ(matches.add({{7, 0, "module", "name", "file"}, {8, 0, "module", "name", "file"}}),
              0u);
    EXPECT_EQ(matches.add({{9, 0, "module", "name", "file"}, {9, 1, "module", "name", "file"}}),
              0u);
    ASSERT_EQ(matches.all().size(), 2u);
    EXPECT_EQ(matches.all()[1].line, 1u);
    EXPECT_EQ(matches.left_out(), 0u);
}

TEST(PythonMatches, OneProcessDoesNotFillTheMemoryAndKeepsNoOtherOut) {
    PythonMatches matches;
    size_t refused = 0;
    for (size_t packet = 0; packet < 100; ++packet)
        refused += matches.add(some(1000, 1000 * packet));
    EXPECT_EQ(matches.all().size(), PythonMatches::kMaxOfProcess);
    EXPECT_EQ(refused, 100'000 - PythonMatches::kMaxOfProcess);
    EXPECT_EQ(matches.left_out(), refused);
    EXPECT_EQ(matches.add({{8, 3, "other", "name", "file"}}), 0u);
    ASSERT_EQ(matches.all().size(), PythonMatches::kMaxOfProcess + 1);
    EXPECT_EQ(matches.all().back().process, 8);
    EXPECT_EQ(matches.all().back().line, 3u);
    EXPECT_EQ(matches.all().back().module, "other");
}

TEST(PythonMatches, LongTextsAreCut) {
    PythonMatches matches;
    const std::string text(PythonMatches::kMaxText + 1, 'x');
    EXPECT_EQ(matches.add({{7, 0, text, text, text}}), 0u);
    for (const std::string& kept :
         {matches.all()[0].module, matches.all()[0].name, matches.all()[0].file})
        EXPECT_TRUE(kept == text.substr(0, PythonMatches::kMaxText));
}

TEST(PythonMatches, TheTextsOfOneProcessAreBoundedTogether) {
    PythonMatches matches;
    const std::string text(PythonMatches::kMaxText, 'x');
    const size_t fit = PythonMatches::kMaxBytesOfProcess / (3 * PythonMatches::kMaxText);
    EXPECT_EQ(matches.add(some(fit + 10, 0, text)), 10u);
    EXPECT_EQ(matches.all().size(), fit);
    EXPECT_EQ(matches.add({{8, 0, text, text, text}}), 0u);
}

} // namespace
} // namespace speedbump::engine
