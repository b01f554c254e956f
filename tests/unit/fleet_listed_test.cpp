// SPDX-License-Identifier: MIT
#include "fleet/listed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace speedbump::fleet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(FleetListed, WhatAJobIsCalled) {
    for (const char* id : {"1", "42", "42_3", "42+1"}) EXPECT_TRUE(is_job_id(id)) << id;
    for (const char* id :
         {"", "x", "-1", "42_", "_3", "42,43", "42_3_4", "42 ", "42_[1-3]", "4+2_1"})
        EXPECT_FALSE(is_job_id(id)) << id;
}

TEST(FleetListed, AJobThatRuns) {
    EXPECT_EQ(*read_job("42|RUNNING|n[1-2]\n"), (Job{"42", "n[1-2]"}));
}

TEST(FleetListed, AJobThatDoesNot) {
    EXPECT_EQ(read_job("").error().kind, ErrorKind::kNotFound);
    for (const char* state : {"PENDING", "COMPLETED", "CANCELLED", "SUSPENDED"}) {
        const auto job = read_job(std::string("42|") + state + "|\n");
        EXPECT_EQ(job.error().kind, ErrorKind::kNotFound);
        EXPECT_THAT(job.error().message, HasSubstr(state));
    }
    // Of an array all would be asked for at once.
    EXPECT_EQ(read_job("43|RUNNING|n1\n42|RUNNING|n2\n").error().kind, ErrorKind::kUsage);
    for (const char* text : {"42|RUNNING", "42|RUNNING|", "x|RUNNING|n1", "42|RUNNING|n1|n2"})
        EXPECT_EQ(read_job(text).error().kind, ErrorKind::kInvalid) << text;
}

TEST(FleetListed, NodesOfAJob) {
    EXPECT_THAT(*read_nodes({"42", "n[1-2]"}, "n1\nn2\n"),
                ElementsAre(Launch{"srun --overlap --jobid 42 -w n1 -N1 -n1", "n1"},
                            Launch{"srun --overlap --jobid 42 -w n2 -N1 -n1", "n2"}));
    EXPECT_EQ(read_nodes({"42", ""}, "").error().kind, ErrorKind::kNotFound);
    // What becomes part of a command has no blanks, quotes and options in it.
    for (const char* text : {"n1 n2\n", "'n1\n", "-n1\n", "n1\n$(x)\n"})
        EXPECT_EQ(read_nodes({"42", ""}, text).error().kind, ErrorKind::kInvalid) << text;
}

TEST(FleetListed, PodsThatRun) {
    std::vector<std::string> left_out;
    EXPECT_THAT(*read_pods("shop|web-1|Running|\nshop|web-2|Pending|\n"
                           "shop|web-3|Running|2026-01-01T00:00:00Z\nshop|web-4|Running|\n",
                           left_out),
                ElementsAre(Launch{"kubectl exec -i -n shop web-1 --", "web-1"},
                            Launch{"kubectl exec -i -n shop web-4 --", "web-4"}));
    EXPECT_THAT(left_out, ElementsAre("pod web-2 is Pending", "pod web-3 is being deleted"));
}

TEST(FleetListed, NoPod) {
    std::vector<std::string> left_out;
    EXPECT_EQ(read_pods("", left_out).error().message, "no pod matches");
    EXPECT_THAT(left_out, IsEmpty());
    EXPECT_THAT(read_pods("a|b|Failed|\na|c|Pending|\n", left_out).error().message,
                HasSubstr("pod b is Failed, and 1 more"));
    for (const char* text : {"a|b|Running", "a|b c|Running|", "a|--x|Running|", "|b|Running|"})
        EXPECT_EQ(read_pods(text, left_out).error().kind, ErrorKind::kInvalid) << text;
}

} // namespace
} // namespace speedbump::fleet
