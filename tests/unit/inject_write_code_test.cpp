// SPDX-License-Identifier: MIT
#include "inject/write_code.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string>

#include "../cpu_time.h"
#include "process/memory.h"
#include "util/clock.h"

namespace speedbump::inject {
namespace {

// A child with code that it can't write to, and a counter that it counts up as long as it runs.
class WriteCode : public ::testing::Test {
  protected:
    struct Counter {
        std::atomic<uint64_t> value;
    };

    void SetUp() override {
        void* const shared =
            mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        ASSERT_NE(shared, MAP_FAILED);
        counter_ = new (shared) Counter();
        code_ = mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        ASSERT_NE(code_, MAP_FAILED);
        child_ = fork();
        if (child_ == 0)
            for (;; usleep(100)) counter_->value++;
        auto opened = process::open_memory(child_);
        ASSERT_TRUE(opened) << opened.error().message;
        memory_ = std::move(*opened);
    }
    void TearDown() override {
        end();
        munmap(code_, 4096);
        munmap(counter_, 4096);
    }
    void end() {
        if (child_ == 0) return;
        kill(child_, SIGKILL);
        waitpid(child_, nullptr, 0);
        child_ = 0;
    }
    uint64_t code() const { return reinterpret_cast<uint64_t>(code_); }
    bool goes_on() const {
        const uint64_t before = counter_->value;
        const auto end = Clock::now() + kWithoutEnd;
        while (counter_->value < before + 10 && Clock::now() < end) usleep(1000);
        return counter_->value >= before + 10;
    }
    bool is_traced() const {
        std::ifstream status("/proc/" + std::to_string(child_) + "/status");
        for (std::string line; std::getline(status, line);)
            if (line.starts_with("TracerPid:")) return line != "TracerPid:\t0";
        return true;
    }

    pid_t child_ = 0;
    void* code_ = nullptr;
    Counter* counter_ = nullptr;
    Fd memory_;
};

TEST_F(WriteCode, WritesWhatTheProcessCannot) {
    const std::string text = "some instructions";
    const auto written = write_code(child_, memory_, code() + 5, text.data(), text.size());
    ASSERT_TRUE(written) << written.error().message;
    std::string there(text.size(), '\0');
    ASSERT_TRUE(process::RemoteMemory(child_).read(code() + 5, there.data(), there.size()));
    EXPECT_EQ(there, text);
    EXPECT_TRUE(goes_on());
}

// As where the kernel wants the writer to trace the process: what it answers first is the same.
TEST_F(WriteCode, ATracedProcessIsLetGoAndHasNotStopped) {
    munmap(code_, 4096);
    code_ = nullptr;
    const uint64_t nowhere = 4096;
    for (int i = 0; i < 20; ++i) {
        const auto written = write_code(child_, memory_, nowhere, "1234", 4);
        ASSERT_FALSE(written);
        EXPECT_EQ(written.error().error_number, EIO);
        EXPECT_FALSE(is_traced());
        ASSERT_TRUE(goes_on());
    }
}

TEST_F(WriteCode, AStoppedProcessGoesOnWhenItIsContinued) {
    kill(child_, SIGSTOP);
    siginfo_t info{};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child_), &info, WSTOPPED), 0);
    EXPECT_FALSE(write_code(child_, memory_, 4096, "1234", 4));
    EXPECT_FALSE(is_traced());
    kill(child_, SIGCONT);
    EXPECT_TRUE(goes_on());
}

TEST_F(WriteCode, WritesNothingWhereTheProcessHasEnded) {
    const pid_t child = child_;
    end();
    const auto written = write_code(child, memory_, code(), "1234", 4);
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().error_number, ESRCH);
}

} // namespace
} // namespace speedbump::inject
