// SPDX-License-Identifier: MIT
#include "process/named_code.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

extern "C" __attribute__((noinline, used, visibility("default"))) int speedbump_named_function(
    int value) {
    return value + 1;
}

namespace speedbump::process {
namespace {

class NamedCodeTest : public testing::Test {
  protected:
    void SetUp() override {
        auto read = read_maps(getpid());
        ASSERT_TRUE(read);
        mappings_ = std::move(*read);
    }
    void expect_found() {
        const AddressRanges found = code_.find(getpid(), mappings_);
        ASSERT_EQ(found.size(), 1u);
        EXPECT_EQ(found[0].begin, reinterpret_cast<uint64_t>(&speedbump_named_function));
        EXPECT_GT(found[0].end, found[0].begin);
    }

    std::vector<Mapping> mappings_;
    NamedCode code_{targets::Pattern{"speedbump_named_function", false}};
};

TEST_F(NamedCodeTest, FindsAFunctionInAProcess) {
    expect_found();
    expect_found(); // of what was read already
}

// A session may see any number of libraries come and go.
TEST_F(NamedCodeTest, HoldsOnlyFilesWithSuchFunctions) {
    expect_found();
    EXPECT_EQ(code_.held_files(), 1u);
    EXPECT_GT(code_.known_files(), 1u);
}

// As where there are no descriptors for a moment: a session may ask for days.
TEST_F(NamedCodeTest, LooksAgainAtWhatCouldNotBeOpened) {
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    rlimit none = before;
    none.rlim_cur = 0;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    const AddressRanges found = code_.find(getpid(), mappings_);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_TRUE(found.empty());
    expect_found();
}

} // namespace
} // namespace speedbump::process
