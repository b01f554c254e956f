// SPDX-License-Identifier: MIT
// bpf/python_walk.h is one walk: as C, as the BPF program has it, and as C++ it makes the same
// frames of the same memory, be it whole or damaged. (tests/runtime/python_walk_test: in BPF.)
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "python_walk_in_c.h"
#include "stack_image.h"
#include "walked_frames.h"

namespace speedbump::stacks {
namespace {

int read_image(void* memory, void* to, __u32 size, __u64 address) {
    return static_cast<const StackImage*>(memory)->read(address, to, size) ? 0 : -1;
}

WalkedFrames walk_in_c(StackImage& image) {
    WalkedFrames walked;
    walked.frames.resize(SB_PYTHON_FRAMES);
    walked.frames.resize(python_walk_in_c(read_image, &image, &image.layout, image.thread,
                                          walked.frames.data(), SB_PYTHON_FRAMES, &walked.fault));
    return walked;
}

// The same, but that the loader has room for more frames.
void expect_same(StackImage& image) {
    WalkedFrames cpp = walk_frames(image, image.layout, image.thread);
    const WalkedFrames c = walk_in_c(image);
    if (c.fault == SB_PYTHON_DEEP) {
        EXPECT_GT(cpp.frames.size(), size_t{SB_PYTHON_FRAMES});
        cpp.frames.resize(SB_PYTHON_FRAMES);
    } else {
        EXPECT_EQ(cpp.fault, c.fault);
    }
    ASSERT_EQ(cpp.frames.size(), c.frames.size());
    if (c.frames.empty()) return;
    EXPECT_EQ(
        std::memcmp(cpp.frames.data(), c.frames.data(), c.frames.size() * sizeof(sb_python_frame)),
        0);
}

class EachVersion : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Walk, EachVersion, testing::Values(10, 11, 12, 14));

TEST_P(EachVersion, OfAWholeStack) {
    StackImage image(GetParam());
    const WalkedFrames walked = walk_frames(image, image.layout, image.thread);
    EXPECT_EQ(walked.fault, SB_PYTHON_FINE);
    ASSERT_EQ(walked.frames.size(), 2U);
    EXPECT_EQ(walked.frames[0].address, image.leaf_frame);
    EXPECT_EQ(sb_code_address(&walked.frames[0]), image.leaf_code);
    EXPECT_EQ(walked.frames[1].address, image.main_frame);
    EXPECT_NE(walked.frames[0].identity, walked.frames[1].identity);
    EXPECT_NE(walked.frames[0].identity, 0U);
    expect_same(image);
}

TEST_P(EachVersion, OfACircle) {
    StackImage image(GetParam());
    image.put(image.main_frame + image.layout.frame_previous, image.leaf_frame);
    EXPECT_EQ(walk_in_c(image).fault, SB_PYTHON_DEEP);
    EXPECT_EQ(walk_frames(image, image.layout, image.thread).fault, SB_PYTHON_DEEP);
    expect_same(image);
}

// What lies right before memory that is not there is read field by field.
TEST_P(EachVersion, OfACodeObjectBeforeAHole) {
    StackImage image(GetParam());
    const cpython::Layout& layout = image.layout;
    const uint64_t first_field =
        std::max({layout.code_name, layout.code_file, layout.code_lines, layout.code_first_line});
    image.hole_start = image.leaf_code + first_field + 8;
    image.hole_end = image.leaf_code + 320;
    expect_same(image);
}

TEST_P(EachVersion, OfDamagedStacks) {
    std::mt19937_64 random(static_cast<uint64_t>(GetParam()));
    size_t whole = 0;
    for (int round = 0; round < 2000; ++round) {
        StackImage image(GetParam());
        const uint64_t words = (image.used() - StackImage::kBase) / 8;
        const uint64_t places[] = {0,
                                   ~uint64_t{0} - random() % 4096,
                                   image.leaf_frame,
                                   image.main_frame,
                                   image.leaf_code,
                                   StackImage::kBase + random() % (words * 8)};
        for (uint64_t count = random() % 6; count > 0; --count)
            image.put(StackImage::kBase + random() % words * 8, places[random() % 6]);
        if (random() % 4 == 0) {
            image.hole_start = StackImage::kBase + random() % (words * 8);
            image.hole_end = image.hole_start + random() % 256;
        }
        whole += walk_in_c(image).fault == SB_PYTHON_FINE ? 1U : 0U;
        expect_same(image);
        if (HasFailure()) FAIL() << "round " << round;
    }
    EXPECT_GT(whole, 100U);
    EXPECT_LT(whole, 2000U);
}

} // namespace
} // namespace speedbump::stacks
