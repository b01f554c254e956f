// SPDX-License-Identifier: MIT
#include "lifecycle/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <thread>

namespace speedbump::lifecycle {
namespace {

TEST(Signals, TheOneThatAsksToStopZeroesWords) {
    auto signals = Signals::install();
    ASSERT_TRUE(signals);
    std::array<uint32_t, 3> words = {1, 1, 1};
    const std::array<uint32_t*, 2> two = {&words[0], &words[2]};
    signals->zero_on_stop(two);
    EXPECT_EQ(words, (std::array<uint32_t, 3>{1, 1, 1}));
    ::raise(SIGTERM);
    EXPECT_EQ(words, (std::array<uint32_t, 3>{0, 1, 0}));
    EXPECT_EQ(signals->stop_signal(), SIGTERM);

    // One that has come already.
    uint32_t late = 1;
    uint32_t* const one = &late;
    signals->zero_on_stop({&one, 1});
    EXPECT_EQ(late, 0u);
}

TEST(Signals, WordsAreLetGoOf) {
    auto signals = Signals::install();
    ASSERT_TRUE(signals);
    uint32_t word = 1;
    uint32_t* const one = &word;
    signals->zero_on_stop({&one, 1});
    signals->zero_on_stop({});
    ::raise(SIGINT);
    EXPECT_EQ(word, 1u);
    EXPECT_EQ(signals->stop_signal(), SIGINT);
}

// As a launcher passes on what a terminal has sent to both.
TEST(Signals, TwoAtTheSameTimeAreOneRequest) {
    auto signals = Signals::install();
    ASSERT_TRUE(signals);
    sigset_t both, before;
    sigemptyset(&both);
    sigaddset(&both, SIGINT);
    sigaddset(&both, SIGTERM);
    ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &both, &before), 0);
    ::raise(SIGINT);
    ::raise(SIGTERM);
    ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
    EXPECT_NE(signals->stop_signal(), 0);
}

TEST(Signals, ALaterOneEndsTheProgram) {
    EXPECT_EXIT(
        {
            auto signals = Signals::install();
            ::raise(SIGINT);
            std::this_thread::sleep_for(std::chrono::milliseconds(600));
            ::raise(SIGTERM);
            ::_exit(0);
        },
        testing::ExitedWithCode(128 + SIGTERM), "");
}

} // namespace
} // namespace speedbump::lifecycle
