// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>

#include "stack_image.h"
#include "stacks/stack_reader.h"
#include "waiting_process.h"
#include "walked_frames.h"

namespace speedbump::stacks {
namespace {

struct Opened {
    StackImage* image;
    StackReader reader;
};

Opened open(int minor, pid_t pid = 0) {
    auto image = std::make_unique<StackImage>(minor);
    StackImage* kept = image.get();
    ReaderOptions options;
    options.patience = std::chrono::microseconds(0);
    auto reader =
        StackReader::open(std::move(image), kept->interpreter, StackImage::kCodeType, pid, options);
    if (!reader) throw std::runtime_error(reader.error().message);
    return {kept, std::move(*reader)};
}

const ThreadStack& only_stack(StackReader& reader) {
    const auto sampled = reader.sample();
    EXPECT_TRUE(sampled) << sampled.error().message;
    EXPECT_EQ(reader.stacks().size(), 1U);
    return *reader.stacks().at(0);
}

class EachVersion : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Inspect, EachVersion, testing::Values(10, 11, 12, 14));

TEST_P(EachVersion, ReadsNamesAndLines) {
    Opened opened = open(GetParam());
    const ThreadStack& stack = only_stack(opened.reader);
    ASSERT_EQ(stack.fault, StackFault::kFine) << describe(stack.fault);
    ASSERT_EQ(stack.frames.size(), 2U);
    EXPECT_EQ(stack.frames[0].function->name, "leaf");
    EXPECT_EQ(stack.frames[0].function->file, "app.py");
    EXPECT_EQ(stack.frames[0].line, 8);
    EXPECT_EQ(stack.frames[1].function->name, "main");
}

TEST_P(EachVersion, FramesInACircle) {
    Opened opened = open(GetParam());
    StackImage& image = *opened.image;
    image.put(image.main_frame + image.layout.frame_previous, image.leaf_frame);
    EXPECT_EQ(only_stack(opened.reader).fault, StackFault::kCircle);
}

// From 3.14 on freed code objects are counted. One that is freed right after the look at it,
// before the count is read, must not be vouched for by that count.
TEST(CodeObjects, FreedBehindTheLookAtThem) {
    Opened opened = open(14);
    StackImage& image = *opened.image;
    const auto state = image.get<uint64_t>(StackImage::kBase + image.layout.runtime_head);
    const auto name = image.get<uint64_t>(image.leaf_code + image.layout.code_name);
    const uint64_t counter = state + image.layout.interpreter_generation;
    const uint64_t innermost = image.thread + image.layout.thread_frame;
    bool was_looked_at = false; // in this reading
    bool is_freed = false;
    image.before_gather = [&] { was_looked_at = false; };
    image.before_piece = [&](uint64_t address) {
        if (address == name + image.layout.text_length) was_looked_at = true;
        if (address != counter || !was_looked_at || is_freed) return;
        is_freed = true;
        image.put<uint64_t>(counter, 1);
        image.put(innermost, image.main_frame); // leaf() has returned; its memory is as it was
    };
    for (int i = 0; i < 8; ++i) (void)only_stack(opened.reader);
    ASSERT_TRUE(is_freed);
    image.put(name + image.layout.text_ascii_data + 1, 'o'); // another function, loaf(), is there
    image.put(innermost, image.leaf_frame);
    const ThreadStack& stack = only_stack(opened.reader);
    ASSERT_EQ(stack.fault, StackFault::kFine) << describe(stack.fault);
    EXPECT_EQ(stack.frames[0].function->name, "loaf");
}

TEST_P(EachVersion, FramesAtTheEndOfTheNumbers) {
    Opened opened = open(GetParam());
    StackImage& image = *opened.image;
    (void)only_stack(opened.reader); // so that it has regions to look in
    for (const uint64_t back : {1, 16, 100, 4096}) {
        image.put(image.main_frame + image.layout.frame_previous, ~uint64_t{0} - back);
        EXPECT_EQ(only_stack(opened.reader).fault, StackFault::kUnreadable);
    }
}

TEST_P(EachVersion, FramesThatAreNotThere) {
    Opened opened = open(GetParam());
    StackImage& image = *opened.image;
    image.put(image.main_frame + image.layout.frame_previous, uint64_t{0xdead0000});
    EXPECT_EQ(only_stack(opened.reader).fault, StackFault::kUnreadable);
}

TEST_P(EachVersion, FramesThatAreFreedBetweenSamples) {
    Opened opened = open(GetParam());
    StackImage& image = *opened.image;
    EXPECT_EQ(only_stack(opened.reader).fault, StackFault::kFine);
    image.hole_start = image.main_frame;
    image.hole_end = image.main_frame + 8;
    EXPECT_EQ(only_stack(opened.reader).fault, StackFault::kUnreadable);
    image.hole_end = 0;
    EXPECT_EQ(only_stack(opened.reader).fault, StackFault::kFine);
}

TEST_P(EachVersion, WhatIsNoCodeObject) {
    Opened opened = open(GetParam());
    StackImage& image = *opened.image;
    image.put(image.leaf_code + image.layout.object_type, uint64_t{0x77});
    EXPECT_EQ(only_stack(opened.reader).fault, StackFault::kNoCode);
}

TEST_P(EachVersion, ACodeObjectThatIsAnotherOneNow) {
    Opened opened = open(GetParam());
    StackImage& image = *opened.image;
    EXPECT_EQ(only_stack(opened.reader).frames[0].function->name, "leaf");
    const auto name = image.value<uint64_t>(image.leaf_code + image.layout.code_name).value_or(0);
    image.put(name + image.layout.text_ascii_data, 'B');
    if (image.layout.interpreter_generation != kNone) {
        const auto state =
            image.value<uint64_t>(StackImage::kBase + image.layout.runtime_head).value_or(0);
        image.put(state + image.layout.interpreter_generation, uint64_t{1});
    } else if (image.layout.code_version != kNone) {
        image.put(image.leaf_code + image.layout.code_version, uint32_t{99});
    }
    const ThreadStack& stack = only_stack(opened.reader);
    ASSERT_EQ(stack.fault, StackFault::kFine);
    EXPECT_EQ(stack.frames[0].function->name, "Beaf");
}

// What a process says of threads of others must not take their stacks from them.
TEST(Threads, ThoseOfOthersAreNotBelieved) {
    const test::WaitingProcess other;
    Opened opened = open(14, getpid());
    StackImage& image = *opened.image;
    const uint64_t id = image.thread + image.layout.thread_native_id;
    const auto told = [&] {
        const auto listed = opened.reader.list_threads();
        EXPECT_TRUE(listed) << listed.error().message;
        return opened.reader.thread_states();
    };
    image.put<uint64_t>(id, static_cast<uint64_t>(other.pid()));
    EXPECT_TRUE(told().empty());
    // One that was forked has its parent's number, and one that has just begun has none, until the
    // interpreter comes to it. Its list stays the same.
    image.put<uint64_t>(id, 0);
    EXPECT_TRUE(told().empty());
    image.put<uint64_t>(id, static_cast<uint64_t>(getpid()));
    ASSERT_EQ(told().size(), 1U);
    EXPECT_EQ(told()[0].first, getpid());
}

TEST(Threads, NothingIsOpenedOfThoseThatAreOnlyListed) {
    const auto open_files = [] {
        const std::filesystem::directory_iterator all("/proc/self/fd");
        return std::distance(begin(all), end(all));
    };
    Opened opened = open(14, getpid());
    StackImage& image = *opened.image;
    image.put<uint64_t>(image.thread + image.layout.thread_native_id,
                        static_cast<uint64_t>(getpid()));
    const auto before = open_files();
    ASSERT_TRUE(opened.reader.list_threads());
    EXPECT_EQ(open_files(), before);
}

// Ever new functions call a deep recursion. Frames of the last sample are kept for the next one,
// with their paths.
TEST(Stacks, PathsOfALongRunBeginAnew) {
    Opened opened = open(14);
    StackImage& image = *opened.image;
    const auto main_code = image.get<uint64_t>(image.main_frame + image.layout.frame_code);
    constexpr int kRounds = 1100; // of a thousand new paths
    for (int round = 0; round < kRounds; ++round) {
        image.put<int32_t>(main_code + image.layout.code_first_line, round);
        ASSERT_EQ(only_stack(opened.reader).fault, StackFault::kFine);
        const auto walked = walk_frames(image, image.layout, image.thread).frames;
        ASSERT_EQ(walked.size(), 2U);
        std::vector<sb_python_frame> frames(1000, walked[0]);
        frames.push_back(walked[1]);
        ASSERT_EQ(opened.reader.interpret(1, frames, 0).fault, StackFault::kFine);
        ASSERT_EQ(only_stack(opened.reader).fault, StackFault::kFine);
    }
}

TEST(CodeObjects, MemoryOfThemIsBounded) {
    StackImage image(14);
    const uint64_t lines = image.get<uint64_t>(image.leaf_code + image.layout.code_lines);
    const uint64_t size = StackImage::kBase + image.bytes().size() - lines - 64;
    image.put(lines + image.layout.bytes_size, size);
    CodeTable table(image, image.layout, 0);
    int loaded = 0;
    constexpr int kMany = 4000; // of some 150 KB each
    for (; loaded < kMany && !table.is_full(); ++loaded) {
        Code* code = table.load(image.leaf_code);
        ASSERT_NE(code, nullptr);
        table.forget(*code);
    }
    EXPECT_LT(loaded, 800);
    table.bury();
    EXPECT_FALSE(table.is_full());
}

TEST_P(EachVersion, MemoryThatNeverHoldsStill) {
    Opened opened = open(GetParam());
    StackImage& image = *opened.image;
    uint64_t count = 0;
    image.before_gather = [&] {
        // Two callers in turn, one of them a frame of the other's code.
        const bool is_odd = ++count % 2 != 0;
        image.put(image.leaf_frame + image.layout.frame_previous,
                  is_odd ? image.main_frame : uint64_t{0});
    };
    for (int i = 0; i < 100; ++i) {
        const ThreadStack& stack = only_stack(opened.reader);
        if (stack.fault == StackFault::kFine) {
            EXPECT_EQ(stack.frames[0].function->name, "leaf");
        }
    }
}

TEST_P(EachVersion, ThreadsInACircle) {
    Opened opened = open(GetParam());
    StackImage& image = *opened.image;
    image.put(image.thread + image.layout.thread_next, image.thread);
    const auto sampled = opened.reader.sample();
    ASSERT_FALSE(sampled);
    EXPECT_NE(sampled.error().message.find("circle"), std::string::npos);
}

// What a process says of its interpreter's lock may be anything, and its end may be before its
// beginning.
TEST(Threads, ALockAtTheEndOfTheNumbers) {
    ReaderOptions options;
    options.patience = std::chrono::microseconds(0);
    for (const int minor : {12, 14})
        for (const uint64_t back : {1, 20, 64, 1000}) {
            auto image = std::make_unique<StackImage>(minor);
            const cpython::Interpreter interpreter = image->interpreter;
            const auto state = image->get<uint64_t>(StackImage::kBase + image->layout.runtime_head);
            image->put(state + image->layout.gil, ~uint64_t{0} - back);
            auto reader =
                StackReader::open(std::move(image), interpreter, StackImage::kCodeType, 0, options);
            if (reader) (void)reader->sample(); // and nothing is read that is not there
        }
}

TEST(Inspect, NoDebugOffsets) {
    StackImage image(14);
    image.put(StackImage::kBase, uint64_t{0});
    const auto layout = layout_of(image, image.interpreter);
    ASSERT_FALSE(layout);
    EXPECT_EQ(layout.error().kind, ErrorKind::kUnsupported);
    EXPECT_NE(layout.error().message.find("without debug offsets"), std::string::npos);
}

TEST(Inspect, OffsetsOfAnotherVersion) {
    StackImage image(14);
    image.put(StackImage::kBase + 8, uint64_t{0x030d0000});
    const auto layout = layout_of(image, image.interpreter);
    ASSERT_FALSE(layout);
    EXPECT_NE(layout.error().message.find("another version"), std::string::npos);
}

TEST(Inspect, OffsetsThatMakeNoSense) {
    StackImage image(14);
    image.put(StackImage::kBase + 33 * 8, ~uint64_t{0});
    const auto layout = layout_of(image, image.interpreter);
    ASSERT_FALSE(layout);
    EXPECT_NE(layout.error().message.find("make no sense"), std::string::npos);
}

TEST(Inspect, VersionsThatAreNotKnown) {
    StackImage image(12);
    for (int minor : {9, 16}) {
        image.interpreter.minor = minor;
        const auto layout = layout_of(image, image.interpreter);
        ASSERT_FALSE(layout);
        EXPECT_NE(layout.error().message.find("3.10 to 3.15"), std::string::npos);
    }
}

} // namespace
} // namespace speedbump::stacks
