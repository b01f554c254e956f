// SPDX-License-Identifier: MIT
#include "engine/python/python_matches.h"

#include <gtest/gtest.h>

namespace speedbump::engine {
namespace {

TEST(PythonMatches, OneProcessDoesNotFillTheMemoryAndKeepsNoOtherOut) {
    PythonMatches matches;
    const std::vector<PythonMatch> thousand(1000, {7, 0, "module", "name", "file"});
    size_t refused = 0;
    for (int packet = 0; packet < 100; ++packet) refused += matches.add(thousand);
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
    EXPECT_EQ(matches.add(std::vector<PythonMatch>(fit + 10, {7, 0, text, text, text})), 10u);
    EXPECT_EQ(matches.all().size(), fit);
    EXPECT_EQ(matches.add({{8, 0, text, text, text}}), 0u);
}

} // namespace
} // namespace speedbump::engine
