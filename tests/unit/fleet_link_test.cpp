// SPDX-License-Identifier: MIT
#include "fleet/link.h"

#include <gtest/gtest.h>

#include <chrono>

namespace speedbump::fleet {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

std::unique_ptr<Link> start(const std::string& script) {
    auto link = Link::start({"sh", "-c", script});
    EXPECT_TRUE(link);
    return link ? std::move(*link) : nullptr;
}

// Each of them alone takes 3 s: it ends neither with its input nor by SIGTERM.
TEST(FleetLink, HoweverManyAreDeadTheyEndAsOneDoes) {
    std::vector<std::unique_ptr<Link>> links;
    std::vector<Link*> all;
    for (int i = 0; i < 10; ++i) {
        links.push_back(start("trap '' TERM; echo ready; exec sleep 600"));
        ASSERT_TRUE(links.back());
        while (!links.back()->next()) links.back()->turn();
        all.push_back(links.back().get());
    }
    const auto begin = steady_clock::now();
    Link::end_all(all);
    links.clear();
    EXPECT_LT(steady_clock::now() - begin, seconds(20));
}

TEST(FleetLink, EndsWithItsInput) {
    const auto link = start("read line; echo ended >&2; exit 3");
    ASSERT_TRUE(link);
    EXPECT_FALSE(link->has_last_words());
    Link* const own = link.get();
    Link::end_all({&own, 1});
    while (!link->has_last_words()) link->turn();
    EXPECT_EQ(link->last_words(), "its link ended, the launcher with status 3: ended");
}

} // namespace
} // namespace speedbump::fleet
