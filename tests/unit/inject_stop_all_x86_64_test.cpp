// SPDX-License-Identifier: MIT
#include "inject/stop_all.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>

#include "../cpu_time.h"
#include "process/memory.h"
#include "process/threads.h"
#include "util/clock.h"

namespace speedbump::inject {
namespace {

using namespace std::chrono_literals;
using Outcome = CodeChange::Outcome;
using Bytes = std::basic_string<unsigned char>;

constexpr size_t kPage = 4096;
constexpr Bytes::value_type kNop = 0x90;

// A child with some code of its own, and behind it a page that it shares with this process.
class StopAll : public ::testing::Test {
  protected:
    // nop; jmp self; jmp self; and elsewhere: inc counter, again and again.
    static constexpr unsigned char kRange[] = {kNop, 0xeb, 0xfe, 0xeb, 0xfe};
    static constexpr size_t kFirstLoop = 1, kSecondLoop = 3, kCounting = 64, kWitness = 128;

    void SetUp() override {
        auto* const place = static_cast<unsigned char*>(
            mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        ASSERT_NE(place, MAP_FAILED);
        code_ = place;
        ASSERT_NE(mmap(place + kPage, kPage, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
                  MAP_FAILED);
        counter_ = reinterpret_cast<std::atomic<uint64_t>*>(place + kPage);
        std::memcpy(place, kRange, sizeof kRange);
        unsigned char counting[] = {0x48, 0xff, 0x05, 0, 0, 0, 0, 0xeb, 0xf7};
        const int32_t distance = static_cast<int32_t>(kPage - kCounting - 7);
        std::memcpy(counting + 3, &distance, sizeof distance);
        std::memcpy(place + kCounting, counting, sizeof counting);
        std::memcpy(place + kWitness, "the very process", 16);
        ASSERT_EQ(mprotect(place, kPage, PROT_READ | PROT_EXEC), 0);
    }
    void TearDown() override {
        if (child_ > 0) {
            kill(child_, SIGKILL);
            waitpid(child_, nullptr, 0);
        }
        if (code_ != nullptr) munmap(code_, 2 * kPage);
    }

    // A thread in each of these loops, and one that waits.
    void start(std::initializer_list<size_t> loops) {
        child_ = fork();
        if (child_ != 0) return;
        for (const size_t loop : loops)
            std::thread(reinterpret_cast<void (*)()>(code_ + loop)).detach();
        for (;;) pause();
    }
    uint64_t address() const { return reinterpret_cast<uint64_t>(code_); }
    Witness witness() const {
        Witness witness{address() + kWitness, {}};
        std::memcpy(witness.bytes.data(), "the very process", 16);
        return witness;
    }
    Bytes there(size_t size) const {
        Bytes bytes(size, '\0');
        EXPECT_TRUE(process::RemoteMemory(child_).read(address(), bytes.data(), size));
        return bytes;
    }
    CodeChange change() const {
        CodeChange one;
        one.address = address();
        std::memcpy(one.before.data(), kRange, sizeof kRange);
        one.after = {0xe9, 1, 2, 3, 4};
        return one;
    }
    Result<void> change_code(CodeChange& one, std::chrono::milliseconds patience = 60s) const {
        const auto turn = Turn::take_if_any(child_, Clock::now() + 60s);
        if (!turn) return turn.error();
        return inject::change_code(*turn, witness(), {&one, 1}, nullptr, Clock::now() + patience);
    }
    // Until both threads are in their loops.
    void expect_to_loop(size_t threads) const {
        const auto deadline = Clock::now() + kWithoutEnd;
        for (size_t looping = 0; looping < threads && Clock::now() < deadline; usleep(1000)) {
            looping = 0;
            for (const pid_t tid : process::read_threads(child_))
                if (const auto times = process::read_thread_times(child_, tid))
                    looping += times->ran > 20ms;
        }
    }

    unsigned char* code_ = nullptr;
    std::atomic<uint64_t>* counter_ = nullptr;
    pid_t child_ = 0;
};

TEST_F(StopAll, ChangesCodeThatIsAsItHasToBe) {
    start({});
    CodeChange one = change();
    one.whole = Bytes(kRange, sizeof kRange) + Bytes(3, '\0');
    const auto done = change_code(one);
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(one.outcome, Outcome::kDone);
    EXPECT_EQ(there(5), Bytes(one.after.data(), 5));
}

// The rest of an instruction that is moved: what was made of it elsewhere would be another one.
TEST_F(StopAll, ChangesNothingWhereWhatGivesWayIsOtherBehindTheFirstBytes) {
    start({});
    CodeChange one = change();
    one.whole = Bytes(kRange, sizeof kRange) + Bytes({0, 0xcc, 0});
    const auto done = change_code(one);
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(one.outcome, Outcome::kOtherCode);
    EXPECT_EQ(there(5), Bytes(kRange, sizeof kRange));
}

// A call that is led elsewhere keeps its first byte, which may be a breakpoint, and nothing else.
TEST_F(StopAll, LeavesAFirstByteAloneThatIsABreakpointAndNoOther) {
    for (const unsigned char first : {kNop, Bytes::value_type{0xcc}, Bytes::value_type{0x50}}) {
        SCOPED_TRACE(int{first});
        ASSERT_EQ(mprotect(code_, kPage, PROT_READ | PROT_WRITE), 0);
        code_[0] = first;
        ASSERT_EQ(mprotect(code_, kPage, PROT_READ | PROT_EXEC), 0);
        start({});
        CodeChange one = change();
        one.after[0] = one.before[0];
        const auto done = change_code(one);
        ASSERT_TRUE(done) << done.error().message;
        EXPECT_EQ(one.outcome, first == 0x50 ? Outcome::kOtherCode : Outcome::kDone);
        EXPECT_EQ(there(1)[0], first);
        EXPECT_EQ(there(5)[4], first == 0x50 ? kRange[4] : one.after[4]);
        kill(child_, SIGKILL);
        waitpid(child_, nullptr, 0);
        child_ = 0;
    }
}

TEST_F(StopAll, TellsWhereNothingIsMappedAnyMore) {
    start({});
    CodeChange one = change();
    one.address = kPage;
    const auto done = change_code(one);
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(one.outcome, Outcome::kNoCode);
}

TEST_F(StopAll, MovesThreadsThatStandInWhatGivesWay) {
    start({kFirstLoop, kSecondLoop});
    expect_to_loop(2);
    CodeChange one = change();
    one.length = sizeof kRange;
    one.moved[kFirstLoop] = one.moved[kSecondLoop] = address() + kCounting;
    const auto done = change_code(one);
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(one.outcome, Outcome::kDone);
    const auto deadline = Clock::now() + kWithoutEnd;
    while (*counter_ == 0 && Clock::now() < deadline) usleep(1000);
    EXPECT_GT(*counter_, 0u);
}

// Else one would stand in memory that is taken away again, as no jump leads there.
TEST_F(StopAll, MovesNoThreadWhereAnotherCannotBeMoved) {
    start({kFirstLoop, kSecondLoop});
    expect_to_loop(2);
    CodeChange one = change();
    one.length = sizeof kRange;
    one.moved[kFirstLoop] = address() + kCounting;
    const auto done = change_code(one, 500ms);
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().kind, ErrorKind::kTimeout) << done.error().message;
    EXPECT_EQ(there(5), Bytes(kRange, sizeof kRange));
    usleep(50'000);
    EXPECT_EQ(*counter_, 0u);
}

// The others' stop would be met as a tracer that is there already.
TEST_F(StopAll, OneTurnAtATime) {
    start({});
    const auto first = Turn::take(child_, Clock::now());
    if (!first) GTEST_SKIP() << first.error().message;
    const auto second = Turn::take(child_, Clock::now());
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().kind, ErrorKind::kTimeout);
    const auto back = Turn::take_if_any(child_, Clock::now());
    ASSERT_FALSE(back);
    EXPECT_EQ(back.error().kind, ErrorKind::kTimeout);
}

} // namespace
} // namespace speedbump::inject
