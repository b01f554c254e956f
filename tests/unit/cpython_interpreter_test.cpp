// SPDX-License-Identifier: MIT
#include "cpython/interpreter.h"

#include <fcntl.h>
#include <glob.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "cpython/gil.h"
#include "process/source.h"

namespace speedbump::cpython {
namespace {

// A Python that has written what it knows of itself and then waits to be killed.
class Python {
  public:
    explicit Python(const std::string& path) {
        int pipe_fds[2];
        if (pipe2(pipe_fds, O_CLOEXEC) != 0) return;
        pid_ = fork();
        if (pid_ == 0) {
            dup2(pipe_fds[1], 1);
            execl(path.c_str(), path.c_str(), "-S", "-c",
                  "import sys, time\n"
                  "print('%d.%d.%d' % sys.version_info[:3])\n"
                  "sys.stdout.flush()\n"
                  "time.sleep(60)\n",
                  nullptr);
            _exit(127);
        }
        close(pipe_fds[1]);
        for (char c; ::read(pipe_fds[0], &c, 1) == 1 && c != '\n';) version_ += c;
        close(pipe_fds[0]);
    }
    ~Python() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }
    Python(const Python&) = delete;
    Python& operator=(const Python&) = delete;

    pid_t pid() const { return pid_; }
    const std::string& version() const { return version_; }

  private:
    pid_t pid_ = -1;
    std::string version_;
};

std::vector<std::string> pythons(const std::string& version) {
    std::vector<std::string> found;
    const char* home = std::getenv("HOME");
    std::string mine =
        std::string(home ? home : "") + "/.pyenv/versions/" + version + "*/bin/python" + version[0];
    for (const std::string& pattern : {mine, "/usr/bin/python" + version}) {
        glob_t list{};
        if (glob(pattern.c_str(), 0, nullptr, &list) == 0)
            found.insert(found.end(), list.gl_pathv, list.gl_pathv + list.gl_pathc);
        globfree(&list);
    }
    return found;
}

class Supported : public testing::TestWithParam<const char*> {};

TEST_P(Supported, IsFoundWithItsVersion) {
    std::vector<std::string> paths = pythons(GetParam());
    if (paths.empty()) GTEST_SKIP() << "no Python " << GetParam() << " here";
    for (const std::string& path : paths) {
        Python python(path);
        auto found = find_interpreters(python.pid());
        ASSERT_TRUE(found) << found.error().message;
        ASSERT_EQ(found->size(), 1u) << path;
        const Interpreter& interpreter = found->front();
        EXPECT_EQ(std::to_string(interpreter.major) + "." + std::to_string(interpreter.minor),
                  GetParam());
        if (interpreter.micro >= 0) {
            std::string full = std::string(GetParam()) + "." + std::to_string(interpreter.micro);
            EXPECT_EQ(full, python.version());
        }
        EXPECT_TRUE(interpreter.initialized);
        EXPECT_TRUE(interpreter.is_supported());
        EXPECT_FALSE(interpreter.debug);
        EXPECT_FALSE(interpreter.free_threaded);
        EXPECT_FALSE(interpreter.musl);
        EXPECT_EQ(interpreter.in_executable,
                  interpreter.path.find("libpython") == std::string::npos);
        EXPECT_EQ(interpreter.tag(), GetParam());
    }
}

// The one that sleeps has let the GIL go: where it lies is known all the same.
TEST_P(Supported, TheGilIsFoundWhileNobodyHasIt) {
    std::vector<std::string> paths = pythons(GetParam());
    if (paths.empty()) GTEST_SKIP() << "no Python " << GetParam() << " here";
    for (const std::string& path : paths) {
        Python python(path);
        auto found = find_interpreters(python.pid());
        ASSERT_TRUE(found && found->size() == 1) << path;
        const process::ProcessSource source(python.pid());
        const auto place = main_gil(source, found->front());
        ASSERT_TRUE(place) << path;
        // It may be on its way into the sleep yet.
        for (int look = 0; look < 3000 && source.value<int32_t>(place->locked) != 0; ++look)
            usleep(10'000);
        EXPECT_EQ(source.value<int32_t>(place->locked), 0) << path;
        const auto again = main_gil(source, found->front());
        ASSERT_TRUE(again) << path;
        EXPECT_EQ(again->interval, place->interval) << path;
        EXPECT_EQ(source.value<uint64_t>(again->interval), 5000u)
            << path; // sys.getswitchinterval()
    }
}

INSTANTIATE_TEST_SUITE_P(Interpreter, Supported,
                         testing::Values("3.10", "3.11", "3.12", "3.13", "3.14", "3.15"));

class TooOld : public testing::TestWithParam<const char*> {};

TEST_P(TooOld, IsNamed) {
    std::vector<std::string> paths = pythons(GetParam());
    if (paths.empty()) GTEST_SKIP() << "no Python " << GetParam() << " here";
    Python python(paths.front());
    auto found = find_interpreters(python.pid());
    ASSERT_TRUE(found) << found.error().message;
    ASSERT_EQ(found->size(), 1u);
    EXPECT_FALSE(found->front().is_supported());
    EXPECT_NE(found->front().describe().find("older than 3."), std::string::npos)
        << found->front().describe();
}

INSTANTIATE_TEST_SUITE_P(Interpreter, TooOld, testing::Values("2.7", "3.6", "3.8", "3.9"));

TEST(Interpreter, NoPythonIsNoError) {
    auto found = find_interpreters(getpid());
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_TRUE(found->empty());
}

TEST(Interpreter, NoProcess) {
    auto found = find_interpreters(0x3ffffff);
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().kind, ErrorKind::kNotFound);
}

} // namespace
} // namespace speedbump::cpython
