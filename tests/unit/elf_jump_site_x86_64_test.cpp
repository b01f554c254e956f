// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cstring>

#include "elf/jump_site.h"
#include "elf/symbols.h"

namespace speedbump::elf {
namespace {

using Bytes = std::basic_string<unsigned char>;

TEST(JumpRange, TakesWholeInstructions) {
    // mov %rsp,%rbp; push %r12; push %rbx
    const auto range = movable_range(Bytes{0x48, 0x89, 0xe5, 0x41, 0x54, 0x53});
    ASSERT_TRUE(range);
    EXPECT_EQ(range->length, 5);
    EXPECT_EQ(range->places, (std::vector<uint8_t>{0, 3}));
}

TEST(JumpRange, EndsBeforeWhatMayNotMove) {
    EXPECT_FALSE(movable_range(Bytes{0x48, 0x89, 0xe5, 0xe8, 0, 0, 0, 0}));       // call
    EXPECT_FALSE(movable_range(Bytes{0x48, 0x89, 0xe5, 0x74, 0x10, 0x90, 0x90})); // je
    EXPECT_FALSE(movable_range(Bytes{0x0f, 0x05, 0x48, 0x89, 0xe5, 0x90}));       // syscall
    EXPECT_FALSE(movable_range(Bytes{0x48, 0x89, 0xe5, 0xc3, 0x90, 0x90}));       // ret
    EXPECT_FALSE(movable_range(Bytes{0x0f, 0x31, 0x48, 0x89, 0xe5, 0x90}));       // rdtsc
    EXPECT_FALSE(movable_range(Bytes{0xf3, 0xa4, 0x48, 0x89, 0xe5, 0x90}));       // rep movsb
    EXPECT_FALSE(movable_range(Bytes{0x8e, 0xd8, 0x48, 0x89, 0xe5, 0x90}));       // mov %eax,%ds
    // mov %rax,%fs:0x10: may begin a restartable sequence
    EXPECT_FALSE(movable_range(Bytes{0x64, 0x48, 0x89, 0x04, 0x25, 0x10, 0, 0, 0}));
    EXPECT_FALSE(movable_range(Bytes{0x48, 0x89, 0xe5}));
    EXPECT_FALSE(movable_range(Bytes{}));
}

TEST(JumpRange, AddressesRelativeToItselfStayTheSame) {
    // mov 0x100(%rip),%rax
    const Bytes code{0x48, 0x8b, 0x05, 0x00, 0x01, 0x00, 0x00};
    const auto moved = moved_range(code, 0x10000, 0x20000);
    ASSERT_TRUE(moved);
    int32_t displacement = 0;
    std::memcpy(&displacement, moved->data() + 3, 4);
    EXPECT_EQ(displacement, 0x100 - 0x10000);
    EXPECT_FALSE(moved_range(code, 0x10000, uint64_t{1} << 33));
    // With a constant behind the address: cmpl $1,0x10(%rip)
    const auto compared = moved_range(Bytes{0x83, 0x3d, 0x10, 0, 0, 0, 0x01}, 0x10000, 0x10008);
    ASSERT_TRUE(compared);
    EXPECT_EQ(*compared, (Bytes{0x83, 0x3d, 0x08, 0, 0, 0, 0x01}));
}

TEST(JumpRange, OthersAreMovedAsTheyAre) {
    const Bytes code{0x48, 0x89, 0xe5, 0x41, 0x54};
    EXPECT_EQ(moved_range(code, 0x1000, 0x7fff00001000), code);
}

} // namespace
} // namespace speedbump::elf
