// SPDX-License-Identifier: MIT
#include "util/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "util/clock.h"
#include "util/fd.h"

namespace speedbump {
namespace {

// Redirects stderr into a file for as long as it lives.
class Captured {
  public:
    Captured() : saved_(::dup(STDERR_FILENO)), file_(::memfd_create("stderr", 0)) {
        // a memory file's position is not locked as that of other files is
        ::fcntl(file_.get(), F_SETFL, O_APPEND);
        ::dup2(file_.get(), STDERR_FILENO);
    }
    ~Captured() { ::dup2(saved_.get(), STDERR_FILENO); }
    std::string text() const {
        std::string result(static_cast<size_t>(::lseek(file_.get(), 0, SEEK_END)), '\0');
        EXPECT_EQ(::pread(file_.get(), result.data(), result.size(), 0),
                  static_cast<ssize_t>(result.size()));
        return result;
    }

  private:
    Fd saved_;
    Fd file_;
};

class Log : public testing::Test {
  protected:
    void SetUp() override {
        ::unsetenv("NO_COLOR");
        ::unsetenv("CLICOLOR_FORCE");
        ::setenv("TERM", "xterm", 1);
        log::set_level(log::Level::kInfo);
    }
};

TEST_F(Log, WritesLevelsAtOrAboveTheSinks) {
    const Captured captured;
    log::error("e");
    log::warning("w");
    log::info("i");
    log::debug("hidden");
    log::set_level(log::Level::kDebug);
    log::debug("d");
    log::set_level(log::Level::kWarning);
    log::info("hidden");
    EXPECT_EQ(captured.text(),
              "speedbump: error: e\nspeedbump: warning: w\nspeedbump: i\n"
              "speedbump: debug: d\n");
}

TEST_F(Log, KeepsErrno) {
    const Captured captured;
    errno = EXDEV;
    log::error("e");
    EXPECT_EQ(errno, EXDEV);
}

TEST_F(Log, KeepsLinesOfThreadsWhole) {
    const Captured captured;
    const std::string body(200, 'x');
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&body] {
            for (int line = 0; line < 250; ++line) log::warning(body);
        });
    }
    for (std::thread& thread : threads) thread.join();
    std::string expected;
    for (int line = 0; line < 1'000; ++line) expected += "speedbump: warning: " + body + "\n";
    EXPECT_TRUE(captured.text() == expected);
}

TEST_F(Log, ColoursTerminalsOnlyUnlessTold) {
    const Fd terminal(::posix_openpt(O_RDWR | O_NOCTTY));
    const Fd file(::memfd_create("file", 0));
    ASSERT_TRUE(terminal.valid());
    EXPECT_TRUE(log::use_colour(terminal.get()));
    EXPECT_FALSE(log::use_colour(file.get()));
    ::setenv("TERM", "dumb", 1);
    EXPECT_FALSE(log::use_colour(terminal.get()));
    ::setenv("TERM", "xterm", 1);
    ::setenv("NO_COLOR", "1", 1);
    EXPECT_FALSE(log::use_colour(terminal.get()));
    ::setenv("NO_COLOR", "", 1);
    EXPECT_TRUE(log::use_colour(terminal.get()));
    ::setenv("NO_COLOR", "1", 1);
    ::setenv("CLICOLOR_FORCE", "1", 1);
    EXPECT_TRUE(log::use_colour(file.get()));
    ::setenv("CLICOLOR_FORCE", "0", 1);
    EXPECT_FALSE(log::use_colour(file.get()));
}

TEST_F(Log, FormatsColouredLines) {
    EXPECT_EQ(log::format_line(log::Level::kError, "x", true),
              "speedbump: \033[1;31merror: \033[0mx\n");
    EXPECT_EQ(log::format_line(log::Level::kInfo, "x", true), "speedbump: x\n");
}

TEST(Clocks, AreMonotonic) {
    const uint64_t before = monotonic_ns();
    struct timespec now = {};
    ASSERT_EQ(::clock_gettime(CLOCK_MONOTONIC, &now), 0);
    const uint64_t kernel =
        static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
    EXPECT_LE(before, kernel);
    EXPECT_LE(kernel, monotonic_ns());
}

// A process may be called anything.
TEST_F(Log, ControlCharactersAreEscaped) {
    EXPECT_EQ(log::format_line(log::Level::kWarning, "process 7 (\x1b[2Jred\x07)\rline", false),
              "speedbump: warning: process 7 (\\x1b[2Jred\\x07)\\x0dline\n");
    EXPECT_EQ(log::format_line(log::Level::kInfo, "\\x1b stays", false),
              "speedbump: \\x1b stays\n");
}

TEST_F(Log, ANameCannotForgeALine) {
    const Captured captured;
    log::warning("process 7 (x\nspeedbump: error: forged\n)\n");
    EXPECT_EQ(captured.text(),
              "speedbump: warning: process 7 (x\\x0aspeedbump: error: forged\\x0a)\\x0a\n");
}

} // namespace
} // namespace speedbump
