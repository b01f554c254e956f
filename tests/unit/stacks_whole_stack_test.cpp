// SPDX-License-Identifier: MIT
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stack_image.h"
#include "stacks/profile.h"
#include "stacks/whole_stack.h"
#include "walked_frames.h"

namespace speedbump::stacks {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

NativeFunction native_function(const std::string& name) {
    NativeFunction function;
    function.path = "/usr/lib/libfoo.so.1";
    function.name = name;
    function.runs_python = name == "_PyEval_EvalFrameDefault" || name.starts_with("_TAIL_CALL_");
    return function;
}

// Each native frame has 100 bytes of stack, from 1000 on.
struct Stacks {
    std::deque<NativeFunction> native_functions;
    std::deque<Function> functions;
    NativeStack native;
    std::vector<Frame> python;

    void add_native(const std::string& name) {
        native_functions.push_back(native_function(name));
        native.frames.push_back({&native_functions.back(), 1000 + 100 * native.frames.size()});
    }
    // `c_stack`: of an entry; 0: it isn't known where its loop is.
    void add_python(const std::string& name, bool is_entry, uint64_t c_stack = 0) {
        functions.push_back({static_cast<uint32_t>(functions.size()), name, "app.py", 1});
        python.push_back({&functions.back(), 2, is_entry, c_stack});
    }
    std::vector<std::string> merged() const {
        std::vector<std::string> names;
        const auto frames = merge(native, python);
        if (!frames) return {"do not fit"};
        for (const WholeFrame& frame : *frames)
            names.push_back(frame.python != nullptr ? frame.python->name + "()"
                                                    : frame.native->name);
        return names;
    }
};

TEST(Merge, ByTheNameOfTheLoop) {
    Stacks stacks;
    stacks.native.is_complete = true;
    for (const char* name : {"adler32", "_PyEval_EvalFrameDefault", "list_sort",
                             "_PyEval_EvalFrameDefault", "Py_RunMain", "_start"})
        stacks.add_native(name);
    stacks.add_python("key", true);
    stacks.add_python("work", false);
    stacks.add_python("<module>", true);
    EXPECT_THAT(stacks.merged(), ElementsAre("adler32", "key()", "list_sort", "work()",
                                             "<module>()", "Py_RunMain", "_start"));
    // The loop that has just been called has no frame yet, or none any more.
    stacks.python.erase(stacks.python.begin());
    EXPECT_THAT(stacks.merged(), ElementsAre("adler32", "_PyEval_EvalFrameDefault", "list_sort",
                                             "work()", "<module>()", "Py_RunMain", "_start"));
    stacks.add_python("one", true);
    stacks.add_python("two", true);
    EXPECT_THAT(stacks.merged(), ElementsAre("do not fit"));
}

TEST(Merge, ByWhatTheLoopKeepsOnTheStack) {
    Stacks stacks;
    stacks.native.is_complete = true;
    for (const char* name : {"adler32", "_PyEval_EvalFrameDefault", "list_sort", "_TAIL_CALL_CALL",
                             "_PyEval_Vector", "_start"})
        stacks.add_native(name);
    stacks.add_python("key", true, 1150);
    stacks.add_python("work", true, 1430); // the loop was inlined into _PyEval_Vector
    EXPECT_THAT(stacks.merged(),
                ElementsAre("adler32", "key()", "list_sort", "work()", "_PyEval_Vector", "_start"));
    stacks.python[1].c_stack = 5000; // beyond what is known of the stack
    EXPECT_THAT(stacks.merged(), ElementsAre("do not fit"));
    stacks.python[1].c_stack = 1020; // not in the order of the calls
    EXPECT_THAT(stacks.merged(), ElementsAre("do not fit"));
}

TEST(Merge, OneWorldAlone) {
    Stacks stacks;
    stacks.native.is_complete = true;
    stacks.add_native("write");
    stacks.add_native("_start");
    EXPECT_THAT(stacks.merged(), ElementsAre("write", "_start"));
    stacks.native.is_complete = false;
    EXPECT_THAT(stacks.merged(), ElementsAre("do not fit"));
}

TEST(Merge, AStackWithoutItsBeginning) {
    Stacks stacks;
    stacks.native.is_complete = true;
    stacks.add_native("_PyEval_EvalFrameDefault");
    stacks.add_native("_start");
    stacks.add_python("f", true, 1010);
    stacks.add_python("g", false);
    EXPECT_THAT(stacks.merged(), ElementsAre("do not fit"));
}

TEST(Profile, CountsBothWorlds) {
    const Function render{0, "render", "app.py", 3};
    const NativeFunction step = native_function("sqlite3_step");
    NativeFunction unnamed;
    unnamed.path = "/usr/lib/libc.so.6";
    Profile profile;
    Sampled thread;
    thread.pid = thread.tid = getpid();
    thread.active = true;
    thread.times = 3;
    profile.add(thread, {{nullptr, &step}, {&render, nullptr}, {&render, nullptr}});
    thread.active = false;
    thread.times = 1;
    profile.add(thread, {{nullptr, &unnamed}, {&render, nullptr}, {nullptr, &step}});
    profile.add(thread, {});
    EXPECT_EQ(profile.stacks(), 4U);
    EXPECT_EQ(profile.active_stacks(), 3U);
    const FunctionUse& python = profile.functions().begin()->second;
    EXPECT_EQ(python.self, 4U);
    EXPECT_EQ(python.total, 4U); // recursion counts once
    EXPECT_EQ(python.active, 3U);
    ASSERT_EQ(profile.native_functions().size(), 1U);
    const FunctionUse& native = profile.native_functions().begin()->second;
    EXPECT_EQ(native.self, 3U);
    EXPECT_EQ(native.total, 4U);
    const auto collapsed = profile.tree().collapsed();
    ASSERT_EQ(collapsed.size(), 2U);
    const auto& [stack, count] = *collapsed.begin();
    EXPECT_THAT(stack,
                HasSubstr(";render (app.py:3);render (app.py:3);sqlite3_step (libfoo.so.1)"));
    EXPECT_EQ(count, 3U);
    EXPECT_THAT(collapsed.rbegin()->first,
                HasSubstr(";sqlite3_step (libfoo.so.1);render (app.py:3);[libc.so.6]"));
}

class EachVersion : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Inspect, EachVersion, testing::Values(10, 11, 12, 14));

TEST_P(EachVersion, StacksOfOneMoment) {
    auto kept = std::make_unique<StackImage>(GetParam());
    StackImage& image = *kept;
    auto reader =
        StackReader::open(std::move(kept), image.interpreter, StackImage::kCodeType, 0, {});
    ASSERT_TRUE(reader) << reader.error().message;
    ASSERT_TRUE(reader->list_threads());
    const auto states = reader->thread_states();
    ASSERT_EQ(states.size(), 1U);
    EXPECT_EQ(states[0].second.address, image.thread);
    const WalkedFrames walked = walk_frames(image, image.layout, states[0].second.address);
    ASSERT_EQ(walked.fault, SB_PYTHON_FINE);

    const ThreadStack stack = reader->interpret(states[0].first, walked.frames, 0x1000);
    ASSERT_EQ(stack.fault, StackFault::kFine) << describe(stack.fault);
    ASSERT_EQ(stack.frames.size(), 2U);
    EXPECT_EQ(stack.frames[0].function->name, "leaf");
    EXPECT_EQ(stack.frames[0].line, 8);
    // Seen once within the loop it may be one that is just being linked.
    EXPECT_EQ(reader->is_certain(stack.frames), GetParam() == 10);
    (void)reader->interpret(stack.tid, walked.frames, 0x1040);
    EXPECT_EQ(reader->is_certain(stack.frames), GetParam() == 10);
    (void)reader->interpret(stack.tid, walked.frames, 0x4000);
    EXPECT_TRUE(reader->is_certain(stack.frames));
}

TEST_P(EachVersion, ACodeObjectThatIsAnotherOneNow) {
    auto kept = std::make_unique<StackImage>(GetParam());
    StackImage& image = *kept;
    auto reader =
        StackReader::open(std::move(kept), image.interpreter, StackImage::kCodeType, 0, {});
    ASSERT_TRUE(reader) << reader.error().message;
    sb_python_frame frame{};
    frame.code = image.leaf_code;
    frame.ip = GetParam() == 10 ? 1 : image.leaf_code + image.layout.code_bytes + 2;
    frame.identity = 1;
    EXPECT_EQ(reader->interpret(1, {&frame, 1}, 0).fault, StackFault::kNoCode);
}

} // namespace
} // namespace speedbump::stacks
