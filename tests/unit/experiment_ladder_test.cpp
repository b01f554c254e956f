// SPDX-License-Identifier: MIT
#include "experiment/ladder.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "targets/matcher.h"

namespace speedbump::experiment {
namespace {

using targets::Runtime;

LadderFunction python(std::string module, std::string name, std::string file = "/app/file.py") {
    return {Runtime::kPython, std::move(module), std::move(name), std::move(file)};
}

LadderFunction native(std::string file, std::string name) {
    return {Runtime::kNative, std::move(file), std::move(name), ""};
}

std::vector<std::string> names_of(const std::vector<Group>& groups) {
    std::vector<std::string> names;
    for (const Group& group : groups) names.push_back(group.name);
    std::sort(names.begin(), names.end());
    return names;
}

const Group& find(const std::vector<Group>& groups, const std::string& name) {
    const auto found = std::find_if(groups.begin(), groups.end(),
                                    [&](const Group& group) { return group.name == name; });
    EXPECT_NE(found, groups.end()) << name << " is not among the groups";
    return found == groups.end() ? groups.front() : *found;
}

using Names = std::vector<std::string>;

TEST(Ladder, GoesFromPackagesToFunctions) {
    const Ladder ladder({python("app", "main"), python("app.views", "Shop.price"),
                         python("app.views", "Shop.render"), python("app.views", "render"),
                         python("app.models", "load"), python("json", "dumps"),
                         native("/usr/lib/libm.so.6", "sin"), native("/usr/lib/libm.so.6", "cos"),
                         native("/usr/bin/app", "work")});
    const auto first = ladder.first();
    EXPECT_EQ(names_of(first), (Names{"*:*", "+/usr/bin/app:work", "+/usr/lib/libm.so.6:*"}));
    const auto packages = ladder.below({find(first, "*:*"), find(first, "+/usr/lib/libm.so.6:*")});
    EXPECT_EQ(names_of(packages), (Names{"+/usr/lib/libm.so.6:cos", "+/usr/lib/libm.so.6:sin",
                                         "app.*:*", "json:dumps"}));
    EXPECT_EQ(find(packages, "app.*:*").functions, (std::vector<size_t>{0, 1, 2, 3, 4}));
    const auto modules = ladder.below({find(packages, "app.*:*")});
    EXPECT_EQ(names_of(modules), (Names{"app.models:load", "app.views:*", "app:main"}));
    const auto classes = ladder.below({find(modules, "app.views:*")});
    EXPECT_EQ(names_of(classes), (Names{"app.views:Shop.*", "app.views:render"}));
    const auto methods = ladder.below({find(classes, "app.views:Shop.*")});
    EXPECT_EQ(names_of(methods), (Names{"app.views:Shop.price", "app.views:Shop.render"}));
    EXPECT_TRUE(ladder.is_single(methods.front()));
    EXPECT_FALSE(ladder.is_single(find(classes, "app.views:Shop.*")));
    // There is nothing below.
    EXPECT_EQ(names_of(ladder.below(methods)), names_of(methods));
}

TEST(Ladder, NestedAndSpecialFunctionsHaveTheirPlaces) {
    const Ladder ladder(
        {python("m", "Shop.__init__"), python("m", "Shop.__call__"), python("m", "outer"),
         python("m", "outer.<locals>.inner"), python("m", "outer.<locals>.<lambda>"),
         python("m", "<lambda>"), python("m", "odd[*]?"), python("m", "odd[*]?.below"),
         python("m", "with\nnewline"), python("__main__", "main"), python("", "nowhere")});
    const auto names = ladder.below({find(ladder.below(ladder.first()), "m:*")});
    EXPECT_EQ(names_of(names),
              (Names{"m:<lambda>", "m:Shop.*", "m:odd[*]?.*", "m:outer.*", "m:with\nnewline"}));
    const auto inner = ladder.below({find(names, "m:outer.*")});
    EXPECT_EQ(names_of(inner), (Names{"m:outer", "m:outer.<locals>.*"}));
    for (const auto& groups : {ladder.first(), names, inner})
        EXPECT_TRUE(ladder.lines(groups).unsure.empty());
}

// What the lines select of all functions, by group.
std::map<size_t, std::set<size_t>> selected(const Ladder& ladder, const GroupLines& lines) {
    targets::TargetsFile file;
    file.lines = lines.lines;
    std::map<size_t, std::set<size_t>> result;
    for (size_t i = 0; i < ladder.functions().size(); ++i) {
        const LadderFunction& function = ladder.functions()[i];
        if (function.runtime == Runtime::kNative) continue;
        const targets::TargetLine* line =
            targets::decide_python(file, function.container, function.file, function.name);
        if (line == nullptr) continue;
        const size_t index = static_cast<size_t>(line - file.lines.data());
        result[lines.group_of[index]].insert(i);
    }
    return result;
}

TEST(Ladder, FilesThatReadLikeModulesDoNotMislead) {
    // Each pattern of MODULE also takes functions whose file it matches.
    const Ladder ladder({python("app.views", "f"), python("app.views", "g"),
                         python("other", "f", "app.views"), python("other", "h", "app.zip/x.py"),
                         python("app.models", "f"), python("third", "h", "app.views")});
    const auto packages = ladder.below(ladder.first());
    ASSERT_EQ(names_of(packages), (Names{"app.*:*", "other:*", "third:h"}));
    const std::vector<Group> app{find(packages, "app.*:*"), find(packages, "other:*")};
    const GroupLines lines = ladder.lines(app);
    EXPECT_TRUE(lines.unsure.empty());
    const auto taken = selected(ladder, lines);
    EXPECT_EQ(taken.at(0), (std::set<size_t>{0, 1, 4}));
    EXPECT_EQ(taken.at(1), (std::set<size_t>{2, 3}));
    EXPECT_EQ(taken.size(), 2u);
}

TEST(Ladder, WhatNoPatternTellsApartIsNamed) {
    // Either is "app.views:f" by its module or by its file, whatever is written.
    const Ladder ladder({python("app.views", "f", "other"), python("other", "f", "app.views")});
    const GroupLines lines = ladder.lines(ladder.below(ladder.first()));
    EXPECT_EQ(lines.unsure.size(), 1u);
}

TEST(Ladder, WhatIsCalledMostStandsAloneAndNoGroupHoldsMostOfTheOthers) {
    std::vector<LadderFunction> functions;
    std::vector<double> calls;
    for (int i = 0; i < 1000; ++i) {
        functions.push_back(native("lib", "f" + std::to_string(i)));
        calls.push_back(0);
    }
    const Ladder ladder(functions);
    const auto all = ladder.below(ladder.first());
    ASSERT_EQ(all.size(), 1000u);
    for (size_t i = 0; i < all.size(); ++i)
        calls[i] = all[i].name == "+lib:f7" ? 1e6 : all[i].name == "+lib:f8" ? 5e5 : 1;
    const auto joined = ladder.join(all, calls, 10);
    EXPECT_LE(joined.size(), 10u);
    EXPECT_EQ(joined[0].name, "+lib:f7");
    size_t functions_in_all = 0;
    for (const Group& group : joined) {
        EXPECT_LE(group.functions.size(), 201u) << group.name;
        functions_in_all += group.functions.size();
        if (group.parts.size() == 1) continue;
        const std::string more = " and " + std::to_string(group.parts.size() - 1) + " more";
        EXPECT_TRUE(group.name.ends_with(more)) << group.name;
    }
    EXPECT_EQ(functions_in_all, 1000u);
    // Nothing was called: the same number in each.
    const auto even = ladder.join(all, std::vector<double>(1000, 0), 10);
    ASSERT_EQ(even.size(), 10u);
    for (const Group& group : even) EXPECT_EQ(group.functions.size(), 100u);
}

std::vector<LadderFunction> random_functions(std::mt19937& random) {
    const auto below = [&](size_t limit) {
        return std::uniform_int_distribution<size_t>(0, limit - 1)(random);
    };
    static const std::vector<std::string> kParts = {"a",        "b",        "app",      "views",
                                                    "*",        "[x]",      "?",        "<locals>",
                                                    "<lambda>", "__init__", "\xc3\xa9", ""};
    static const std::vector<std::string> kFiles = {"/a/b.py", "a.b", "app", "<string>", ""};
    const auto name = [&] {
        std::string text = kParts[below(kParts.size())];
        // Deeper than there are steps, now and then.
        const size_t depth = below(40) == 0 ? 20 + below(60) : below(4);
        for (size_t more = depth; more > 0; --more) text += "." + kParts[below(kParts.size())];
        return text;
    };
    std::set<std::tuple<Runtime, std::string, std::string>> known;
    std::vector<LadderFunction> functions;
    const size_t count = 1 + below(150);
    const bool plain_files = below(2) == 0;
    for (size_t i = 0; i < count; ++i) {
        LadderFunction function = below(5) == 0 ? native(name(), name()) : python(name(), name());
        if (!plain_files) function.file = kFiles[below(kFiles.size())];
        if (known.insert({function.runtime, function.container, function.name}).second)
            functions.push_back(function);
    }
    return functions;
}

// Each function is in exactly one group of each rung, and its lines put it there and nowhere else.
TEST(Ladder, LosesNothingOnRandomTrees) {
    std::mt19937 random(17);
    size_t unsure = 0, functions_seen = 0;
    for (int round = 0; round < 300; ++round) {
        const Ladder ladder(random_functions(random));
        std::vector<Group> kept = ladder.first();
        std::set<size_t> expected;
        for (size_t i = 0; i < ladder.functions().size(); ++i) expected.insert(i);
        bool is_end = false;
        for (int rung = 0; !is_end; ++rung) {
            ASSERT_LT(rung, 60);
            std::vector<Group> groups = rung == 0 ? kept : ladder.below(kept);
            std::vector<double> weights;
            for (size_t i = 0; i < groups.size(); ++i)
                weights.push_back(static_cast<double>(random() % 100) * (random() % 3 == 0));
            groups = ladder.join(groups, weights, 4 + random() % 8);
            std::set<size_t> found;
            size_t sum = 0;
            for (const Group& group : groups) {
                found.insert(group.functions.begin(), group.functions.end());
                sum += group.functions.size();
            }
            ASSERT_EQ(found, expected);
            ASSERT_EQ(sum, expected.size());
            const GroupLines lines = ladder.lines(groups);
            const auto taken = selected(ladder, lines);
            std::set<size_t> lost(lines.unsure.begin(), lines.unsure.end());
            unsure += lost.size();
            functions_seen += expected.size();
            for (size_t i = 0; i < ladder.functions().size(); ++i) {
                if (ladder.functions()[i].runtime == Runtime::kNative || lost.contains(i)) continue;
                for (size_t group = 0; group < groups.size(); ++group) {
                    const bool is_in = std::binary_search(groups[group].functions.begin(),
                                                          groups[group].functions.end(), i);
                    const auto of_group = taken.find(group);
                    ASSERT_EQ(of_group != taken.end() && of_group->second.contains(i), is_in)
                        << groups[group].name << " and " << ladder.functions()[i].container << ":"
                        << ladder.functions()[i].name;
                }
            }
            is_end = std::all_of(groups.begin(), groups.end(),
                                 [&](const Group& group) { return ladder.is_single(group); });
            // Some matter, and are followed.
            kept.clear();
            expected.clear();
            for (const Group& group : groups) {
                if (!kept.empty() && random() % 2 == 0) continue;
                kept.push_back(group);
                expected.insert(group.functions.begin(), group.functions.end());
            }
        }
    }
    // Only names and files that read alike are beyond a pattern.
    EXPECT_LT(unsure, functions_seen / 20);
    EXPECT_GT(functions_seen, 10000u);
}

TEST(Ladder, ThousandsOfFunctionsAreNamedInMomentsOfWork) {
    std::vector<LadderFunction> functions;
    for (int i = 0; i < 20000; ++i) functions.push_back(python("flat", "f" + std::to_string(i)));
    const Ladder ladder(functions);
    const auto all = ladder.below(ladder.first());
    ASSERT_EQ(all.size(), 20000u);
    const GroupLines lines = ladder.lines(ladder.join(all, std::vector<double>(20000, 1), 200));
    EXPECT_EQ(lines.lines.size(), 20000u);
    EXPECT_TRUE(lines.unsure.empty());
}

// A process may claim to have functions of any name: a line of the targets file has 4 KiB.
TEST(Ladder, NamesOfDotsTakeNoMoreRoomThanTheyHave) {
    constexpr size_t kFunctions = 2000, kLength = 4096;
    std::vector<LadderFunction> functions;
    for (size_t i = 0; i < kFunctions; ++i) {
        std::string module, name;
        for (size_t part = 0; module.size() < kLength; ++part)
            module += "m" + std::to_string(i) + ".";
        for (size_t part = 0; name.size() < kLength; ++part) name += ".";
        functions.push_back(python(module, name + std::to_string(i)));
    }
    rusage before{}, after{};
    getrusage(RUSAGE_SELF, &before);
    const Ladder ladder(functions);
    std::vector<Group> groups = ladder.first();
    while (!std::all_of(groups.begin(), groups.end(),
                        [&](const Group& group) { return ladder.is_single(group); }))
        groups = ladder.below(groups);
    EXPECT_EQ(groups.size(), kFunctions);
    EXPECT_TRUE(ladder.lines(groups).unsure.empty());
    getrusage(RUSAGE_SELF, &after);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    constexpr long kQuarantine = 256 * 1024; // KiB of what was freed that a sanitizer keeps
#else
    constexpr long kQuarantine = 0;
#endif
    EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 256 * 1024 + kQuarantine);
}

} // namespace
} // namespace speedbump::experiment
