// SPDX-License-Identifier: MIT
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <cstring>

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

#if defined(__x86_64__)
std::array<__u64, SB_REGISTERS> registers_of(const ucontext_t& context) {
    const greg_t* g = context.uc_mcontext.gregs;
    const std::array<int, 20> order = {REG_R15, REG_R14, REG_R13,    REG_R12, REG_RBP,
                                       REG_RBX, REG_R11, REG_R10,    REG_R9,  REG_R8,
                                       REG_RAX, REG_RCX, REG_RDX,    REG_RSI, REG_RDI,
                                       REG_RAX, REG_RIP, REG_CSGSFS, REG_EFL, REG_RSP};
    std::array<__u64, SB_REGISTERS> words{};
    for (size_t i = 0; i < order.size(); ++i) words[i] = static_cast<__u64>(g[order[i]]);
    return words;
}

extern "C" __attribute__((noinline)) void sb_test_inner(NativeUnwinder& unwinder,
                                                        std::vector<std::string>& names) {
    ucontext_t context;
    getcontext(&context);
    const auto words = registers_of(context);
    const auto low = NativeUnwinder::stack_pointer(words);
    const char* stack = reinterpret_cast<const char*>(low); // NOLINT: our own
    std::vector<char> bytes(16384);
    // Not memcpy: it would mind what the sanitizers put between the variables.
    process_vm_readv(getpid(), std::array{iovec{bytes.data(), bytes.size()}}.data(), 1,
                     std::array{iovec{const_cast<char*>(stack), bytes.size()}}.data(), 1, 0);
    for (const NativeStack::Frame& frame : unwinder.unwind(words, bytes).frames)
        names.push_back(frame.function->name);
}

extern "C" __attribute__((noinline)) void sb_test_outer(NativeUnwinder& unwinder,
                                                        std::vector<std::string>& names) {
    sb_test_inner(unwinder, names);
    names.emplace_back("end");
}

TEST(NativeUnwinder, FindsTheCallersOfAThread) {
    auto unwinder = NativeUnwinder::open(getpid());
    ASSERT_TRUE(unwinder) << unwinder.error().message;
    std::vector<std::string> names;
    sb_test_outer(*unwinder, names);
    ASSERT_GT(names.size(), 3U);
    EXPECT_EQ(names[0], "sb_test_inner");
    EXPECT_EQ(names[1], "sb_test_outer");
    EXPECT_THAT(names[2], HasSubstr("FindsTheCallersOfAThread"));
}

TEST(NativeUnwinder, SurvivesAnyRegistersAndStack) {
    auto unwinder = NativeUnwinder::open(getpid());
    ASSERT_TRUE(unwinder) << unwinder.error().message;
    uint64_t random = 1;
    for (int round = 0; round < 2000; ++round) {
        std::array<__u64, SB_REGISTERS> words{};
        std::vector<char> stack(512);
        auto next = [&random] {
            return random = random * 6364136223846793005 + 1442695040888963407;
        };
        for (__u64& word : words) word = next();
        // An instruction of ours, so that there is a rule to follow.
        words[16] = reinterpret_cast<uint64_t>(&sb_test_inner) + next() % 64; // NOLINT
        for (char& byte : stack) byte = static_cast<char>(next() >> 32);
        EXPECT_LT(unwinder->unwind(words, stack).frames.size(), 5000U);
        EXPECT_LT(unwinder->unwind(words, {}).frames.size(), 5000U);
    }
    EXPECT_TRUE(unwinder->unwind({}, {}).frames.empty());
}

TEST(NativeUnwinder, NoSuchProcess) {
    const auto unwinder = NativeUnwinder::open(0x7ffffff0);
    ASSERT_FALSE(unwinder);
    EXPECT_EQ(unwinder.error().kind, ErrorKind::kNotFound);
}
#endif

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
