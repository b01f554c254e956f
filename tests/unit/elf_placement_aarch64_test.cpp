// SPDX-License-Identifier: MIT
#include "elf/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "elf_workshop.h"

namespace speedbump::elf {
namespace {

using testing::HasSubstr;

class PlacementAarch64 : public testing::Test {
  protected:
    Result<ProbeSite> place(const std::string& text) {
        shop_.write("f.s", "        .text\n        .globl f\n        .type f, %function\n" + text +
                               "\n        .size f, .-f\n");
        shop_.run("gcc -shared -nostdlib f.s -o f.so");
        file_ = shop_.open("f.so");
        entry_ = find_function(*file_, "f")->file_offset;
        return place_probe(*file_, entry_, {});
    }

    Workshop shop_;
    std::shared_ptr<const ElfFile> file_;
    uint64_t entry_ = 0;
};

TEST_F(PlacementAarch64, TheEntryOrNothing) {
    const auto pushes = place("f: stp x29, x30, [sp, #-16]!\n ldp x29, x30, [sp], #16\n ret");
    ASSERT_TRUE(pushes) << pushes.error().message;
    EXPECT_EQ(pushes->file_offset, entry_);
    EXPECT_EQ(pushes->kind, SiteKind::kSingleStep);
    EXPECT_EQ(pushes->instruction, "stp (a9bf7bfd)");

    const auto signs = place("f: paciasp\n stp x29, x30, [sp, #-16]!\n ret");
    ASSERT_TRUE(signs) << signs.error().message;
    EXPECT_EQ(signs->file_offset, entry_);

    const auto tests = place("f: cbz x0, 1f\n add x0, x0, #1\n1: ret");
    ASSERT_TRUE(tests) << tests.error().message;
    EXPECT_EQ(tests->kind, SiteKind::kEmulated);

    const auto returns = place("f: ret");
    ASSERT_FALSE(returns);
    EXPECT_EQ(returns.error().kind, ErrorKind::kUnsupported);
    EXPECT_THAT(returns.error().message, HasSubstr("its first instruction ret (d65f03c0)"));

    const auto waits = place("f: ldaxr w0, [x1]\n ret");
    ASSERT_FALSE(waits);
    EXPECT_THAT(waits.error().message, HasSubstr("exclusive"));
}

TEST_F(PlacementAarch64, UnwindersKnowTheReturnOfSignals) {
    const auto restorer = place("f: mov x8, #139\n svc #0");
    ASSERT_FALSE(restorer);
    EXPECT_THAT(restorer.error().message, HasSubstr("signal handlers"));
}

TEST_F(PlacementAarch64, OnlyWhereAnInstructionBegins) {
    ASSERT_TRUE(place("f: mov w0, w1\n mov w0, w1\n ret"));
    EXPECT_FALSE(place_probe(*file_, entry_ + 2, {}));
    EXPECT_FALSE(place_probe(*file_, entry_ + 4, {})); // nothing proves a function there
}

} // namespace
} // namespace speedbump::elf
