// SPDX-License-Identifier: MIT
// Progress points in native code against programs that count and time their own calls. Needs root.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/features.h"
#include "experiment/progress.h"
#include "session/session.h"
#include "targets/parser.h"

namespace speedbump::experiment {
namespace {

// Runs a command; false when it fails.
bool run(const std::string& command) {
    return std::system((command + " >&2").c_str()) == 0;
}

// A program of the protocol of tests/programs/leavers.cpp.
class Program {
  public:
    explicit Program(const std::string& path) {
        int in[2], out[2];
        if (pipe(in) != 0 || pipe(out) != 0) throw std::runtime_error("pipe");
        pid_ = fork();
        if (pid_ == 0) {
            dup2(in[0], STDIN_FILENO);
            dup2(out[1], STDOUT_FILENO);
            for (const int fd : {in[0], in[1], out[0], out[1]}) close(fd);
            execl(path.c_str(), path.c_str(), static_cast<char*>(nullptr));
            _exit(127);
        }
        close(in[0]);
        close(out[1]);
        to_ = fdopen(in[1], "w");
        from_ = fdopen(out[0], "r");
        char line[64];
        if (!std::fgets(line, sizeof(line), from_)) throw std::runtime_error(path + " fails");
    }
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;
    ~Program() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        std::fclose(to_);
        std::fclose(from_);
    }

    struct Answer {
        uint64_t returns = 0;
        uint64_t ns = 0; // of a call
    };
    Answer call(const std::string& name, int calls, int us, int threads) {
        send(name, calls, us, threads);
        return hear(name);
    }
    void send(const std::string& name, int calls, int us, int threads) {
        std::fprintf(to_, "%s %d %d %d\n", name.c_str(), calls, us, threads);
        std::fflush(to_);
    }
    Answer hear(const std::string& name) {
        Answer answer;
        if (std::fscanf(from_, "%lu %lu", &answer.returns, &answer.ns) != 2)
            ADD_FAILURE() << name << " ended the program";
        return answer;
    }
    pid_t pid() const { return pid_; }

  private:
    pid_t pid_ = -1;
    std::FILE* to_ = nullptr;
    std::FILE* from_ = nullptr;
};

struct Opened {
    std::unique_ptr<session::Session> session;
    std::vector<std::unique_ptr<ProgressPoint>> points;
};

Result<Opened> open_points(const std::vector<pid_t>& pids, const std::vector<std::string>& texts) {
    std::vector<ProgressSpec> specs;
    for (const std::string& text : texts) {
        auto spec = parse_progress(text);
        if (!spec) return std::move(spec).error();
        specs.push_back(*spec);
    }
    session::SessionOptions options;
    options.pids = pids;
    options.missing = session::MissingPolicy::kIgnore;
    auto session = session::Session::attach(options, targets::TargetsFile{"none", {}},
                                            [](const std::string&) {});
    if (!session) return std::move(session).error();
    auto points = open_progress(specs, {}, **session, [](const std::string&) {});
    if (!points) return std::move(points).error();
    return Opened{std::move(*session), std::move(*points)};
}

uint64_t units(ProgressPoint& point) {
    auto reading = point.read({});
    if (!reading) {
        ADD_FAILURE() << reading.error().message;
        return 0;
    }
    return reading->units;
}

std::string own_leavers() {
    return std::string(std::getenv("SPEEDBUMP_PROGRAMS")) + "/leavers";
}

class LiveProgress : public testing::Test {
  protected:
    void SetUp() override {
        if (geteuid() != 0) GTEST_SKIP() << "needs root";
        std::string name = testing::TempDir() + "speedbump-progress-XXXXXX";
        ASSERT_NE(mkdtemp(name.data()), nullptr);
        folder_ = name;
    }
    void TearDown() override {
        if (!folder_.empty()) std::filesystem::remove_all(folder_);
    }

    // Calls each function and compares what is counted, and how long it took.
    void compare(const std::string& program, const std::vector<std::string>& functions,
                 const std::string& prefix) {
        Program target(program);
        for (const std::string& name : functions) {
            auto opened = open_points({target.pid()}, {"latency:exe:" + prefix + name});
            ASSERT_TRUE(opened) << name << ": " << opened.error().message;
            ProgressPoint& point = *opened->points.front();
            for (const int threads : {1, 4}) {
                const uint64_t before = units(point);
                const auto calls_before = point.latencies();
                const Program::Answer answer = target.call(name, 300, 5, threads);
                EXPECT_EQ(units(point) - before, answer.returns) << name << ", " << threads;
                const auto calls = point.latencies();
                uint64_t timed = 0;
                for (size_t bucket = 0; bucket < calls.size(); ++bucket)
                    timed += calls[bucket] - calls_before[bucket];
                EXPECT_EQ(timed, answer.returns) << name;
            }
            EXPECT_EQ(point.lost(), 0u) << name;
        }
    }

    void children_are_counted(const std::string& text, bool shared) {
        SCOPED_TRACE(text + (shared ? ", shared" : ", own"));
        const std::string copy = folder_ + "/copy";
        std::filesystem::remove(copy);
        std::filesystem::copy_file(own_leavers(), copy);
        Program target(copy);
        std::unique_ptr<Program> other;
        if (shared) other = std::make_unique<Program>(copy);
        auto opened = open_points({target.pid()}, {text});
        ASSERT_TRUE(opened) << opened.error().message;
        ProgressPoint& point = *opened->points.front();
        // A file that others map as well is probed for everybody once a child has been seen.
        if (shared) {
            target.send("fork:plain", 1, 300'000, 1);
            for (int i = 0; i < 10'000 && opened->session->snapshot().processes.size() < 2; ++i)
                usleep(1000);
            (void)units(point);
            (void)target.hear("fork:plain");
        }
        const uint64_t before = units(point);
        const uint64_t returns = target.call("fork:plain", 200, 0, 2).returns;
        EXPECT_EQ(units(point) - before, returns);
    }

    std::string folder_;
};

const std::vector<std::string> kFunctions = {
    "plain",      "thrown_through", "jumped_over", "catches",        "tail",
    "maybe_tail", "pointer_tail",   "recursive",   "with_cold_part", "with_table"};

TEST_F(LiveProgress, EveryWayOutIsSeen) {
    const std::string source = std::string(SPEEDBUMP_SOURCE_DIR) + "/tests/programs/leavers.cpp";
    int compiled = 0;
    for (const std::string compiler : {"g++", "clang++"}) {
        for (const std::string options : {"-O2", "-O2 -fcf-protection", "-O3 -fno-pie -no-pie"}) {
            const std::string program = folder_ + "/leavers";
            if (!run(compiler + " -std=c++20 -pthread -Wno-all " + options + " -o " + program +
                     " " + source))
                continue;
            ++compiled;
            SCOPED_TRACE(compiler + " " + options);
            compare(program, kFunctions, "");
        }
    }
    EXPECT_GE(compiled, 3) << "neither g++ nor clang++ compiles " << source;
}

TEST_F(LiveProgress, EveryWayOutOfTheProgramOfTheBuildIsSeen) {
    compare(own_leavers(), kFunctions, "");
}

TEST_F(LiveProgress, TimesAreThoseOfTheProgram) {
    Program target(own_leavers());
    for (const std::string name : {"plain", "thrown_through", "tail"}) {
        auto opened = open_points({target.pid()}, {"latency:exe:" + name});
        ASSERT_TRUE(opened) << opened.error().message;
        ProgressPoint& point = *opened->points.front();
        const auto before = point.latencies();
        (void)target.call(name, 200, 300, 1);
        const auto latency = latency_between(before, point.latencies());
        ASSERT_TRUE(latency) << name;
        // A tail call ends the time: what it calls takes as long again.
        EXPECT_GE(latency->p50.count(), 290'000) << name;
        EXPECT_LE(latency->p50.count(), 345'000) << name;
    }
}

TEST_F(LiveProgress, FunctionsOfGo) {
    if (!run("command -v go >/dev/null")) GTEST_SKIP() << "go is not installed";
    const std::string source =
        std::string(SPEEDBUMP_SOURCE_DIR) + "/tests/programs/goroutines/main.go";
    for (const std::string options : {"", "-buildmode=pie"}) {
        const std::string program = folder_ + "/goroutines";
        ASSERT_TRUE(run("HOME=" + folder_ + " GOCACHE=" + folder_ +
                        "/cache CGO_ENABLED=0 go build " + options + " -o " + program + " " +
                        source));
        SCOPED_TRACE(options);
        compare(program, {"plain", "migrates", "grows", "large", "recovers", "unwound", "table"},
                "main.");
    }
}

TEST_F(LiveProgress, CallsThatDoNotReturnMakeRoomForOthers) {
    ::setenv("SPEEDBUMP_WITHOUT", "tallies", 1); // a table for 64 calls
    Program target(own_leavers());
    auto opened = open_points({target.pid()}, {"latency:exe:thrown_through"});
    ::unsetenv("SPEEDBUMP_WITHOUT");
    ASSERT_TRUE(opened) << opened.error().message;
    ProgressPoint& point = *opened->points.front();
    // What these leave behind fills it: a third of 40 threads' calls at seven depths each.
    (void)target.call("thrown_through", 30, 0, 40);
    EXPECT_GT(point.lost(), 0u);
    const uint64_t lost = point.lost();
    const uint64_t before = units(point);
    const Program::Answer answer = target.call("thrown_through", 5, 0, 1);
    EXPECT_EQ(units(point) - before, answer.returns);
    EXPECT_EQ(point.lost(), lost);
}

// Another process runs the same file: the probes are aimed at the tree alone.
TEST_F(LiveProgress, OthersThatMapTheFileDoNotPay) {
    if (!engine::probe_features().uprobe_multi_pid) GTEST_SKIP() << "needs Linux 6.10";
    Program target(own_leavers()), other(own_leavers());
    const std::string copy = folder_ + "/copy";
    std::filesystem::copy_file(own_leavers(), copy);
    Program reference(copy); // no probe is in its file
    // In turns, as the host is not as fast all the time.
    const auto cost = [&] {
        uint64_t best = UINT64_MAX, plain = UINT64_MAX;
        for (int i = 0; i < 5; ++i) {
            best = std::min(best, other.call("plain", 20'000, 0, 1).ns);
            plain = std::min(plain, reference.call("plain", 20'000, 0, 1).ns);
        }
        return static_cast<double>(best) / static_cast<double>(plain);
    };
    for (const std::string point :
         {"native:exe:plain", "latency:exe:plain", "usdt:exe:leavers:plain"}) {
        auto opened = open_points({target.pid()}, {point});
        ASSERT_TRUE(opened) << opened.error().message;
        EXPECT_LT(cost(), 1.5) << point;
        EXPECT_EQ(units(*opened->points.front()), 0u);
        const uint64_t returns = target.call("plain", 100, 0, 1).returns;
        EXPECT_EQ(units(*opened->points.front()), returns);
    }
}

// A program that looks at its mark's semaphore before it comes there sees that it is probed.
TEST_F(LiveProgress, SemaphoresAreUpWhileTheirMarkIsCounted) {
    for (const char* without : {"", "uprobe_multi"}) {
        SCOPED_TRACE(without);
        ::setenv("SPEEDBUMP_WITHOUT", without, 1);
        Program target(own_leavers()), other(own_leavers());
        const auto semaphore = [](Program& program) {
            return program.call("semaphore", 0, 0, 0).returns;
        };
        EXPECT_EQ(semaphore(target), 0u);
        {
            auto opened = open_points({target.pid()}, {"usdt:exe:leavers:watched"});
            ASSERT_TRUE(opened) << opened.error().message;
            EXPECT_EQ(semaphore(target), 1u);
            EXPECT_EQ(semaphore(other), engine::probe_features().uprobe_multi_pid ? 0u : 1u);
            EXPECT_EQ(target.call("watched", 100, 0, 2).returns, 200u);
            EXPECT_EQ(other.call("watched", 100, 0, 1).returns, 100u);
            EXPECT_EQ(units(*opened->points.front()), 200u);
        }
        EXPECT_EQ(semaphore(target), 0u);
        EXPECT_EQ(semaphore(other), 0u);
    }
    ::unsetenv("SPEEDBUMP_WITHOUT");
}

TEST_F(LiveProgress, ChildrenAreCounted) {
    for (const std::string text : {"latency:exe:plain", "usdt:exe:leavers:plain"})
        for (const bool shared : {false, true}) children_are_counted(text, shared);
}

// As containers of one image have it: the kernel's probes are those of the one file below.
TEST_F(LiveProgress, CallsInTwoOverlaysOfOneFileCountOnce) {
    if (!run("grep -qw overlay /proc/filesystems")) GTEST_SKIP() << "the kernel has no overlayfs";
    ASSERT_EQ(unshare(CLONE_NEWNS), 0);
    ASSERT_TRUE(run("mount --make-rprivate / && mount -t tmpfs none " + folder_ + " && mkdir " +
                    folder_ + "/lower && cp " + own_leavers() + " " + folder_ + "/lower/p"));
    for (const std::string one : {"a", "b"})
        ASSERT_TRUE(run("cd " + folder_ + " && mkdir " + one + " up" + one + " work" + one +
                        " && mount -t overlay o -o lowerdir=lower,upperdir=up" + one +
                        ",workdir=work" + one + " " + one));
    {
        Program first(folder_ + "/a/p"), second(folder_ + "/b/p");
        for (const char* without : {"", "uprobe_multi_pid"}) {
            ::setenv("SPEEDBUMP_WITHOUT", without, 1);
            for (const std::string point :
                 {"native:exe:plain", "latency:exe:plain", "usdt:exe:leavers:plain"}) {
                SCOPED_TRACE(point + " " + without);
                auto opened = open_points({first.pid(), second.pid()}, {point});
                ASSERT_TRUE(opened) << opened.error().message;
                uint64_t returns = first.call("plain", 100, 0, 1).returns;
                returns += second.call("plain", 50, 0, 1).returns;
                EXPECT_EQ(units(*opened->points.front()), returns);
            }
        }
        ::unsetenv("SPEEDBUMP_WITHOUT");
        // With an outsider in the other mount they are aimed, until a process is born.
        auto opened = open_points({first.pid()}, {"latency:exe:plain"});
        ASSERT_TRUE(opened) << opened.error().message;
        (void)second.call("plain", 50, 0, 1);
        const uint64_t returns = first.call("plain", 100, 0, 1).returns;
        EXPECT_EQ(units(*opened->points.front()), returns);
    }
    EXPECT_TRUE(run("umount " + folder_ + "/a " + folder_ + "/b " + folder_));
}

TEST_F(LiveProgress, FunctionsWithUnknownWaysOutAreRefused) {
    Program target(own_leavers());
    auto opened = open_points({target.pid()}, {"latency:libc.so.6:abort"});
    ASSERT_FALSE(opened);
    EXPECT_NE(opened.error().message.find("never returns"), std::string::npos)
        << opened.error().message;
}

} // namespace
} // namespace speedbump::experiment
