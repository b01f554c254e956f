// SPDX-License-Identifier: MIT
// Whoever sends, or connects, without end holds the loader up for no longer than it waits for one
// that is silent. Each flood ends by itself after a minute, so that a loader that is held up fails
// the test instead of hanging in it.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <ctime>
#include <fstream>
#include <mutex>

#include "engine/python/python_engine.h"
#include "inject/injector.h"
#include "inject/process_state.h"
#include "target_process.h"

namespace speedbump {
namespace {

using namespace std::chrono_literals;
using engine::PythonEngine;
using engine::PythonEvent;
using inject::InjectOptions;
using test::TargetProcess;

constexpr auto kFloodEnds = 60s;

const std::vector<std::string> kPythons = test::paths_of(TEST_PYTHONS);

std::string source(const std::string& name) {
    return std::string(PROGRAM_DIR) + "/" + name;
}

InjectOptions with_core(const char* core) {
    InjectOptions options;
    options.core = core;
    return options;
}

// Kills a process after kFloodEnds, should this object live for as long.
class EndOfFlood {
  public:
    explicit EndOfFlood(pid_t pid)
        : thread_([this, pid] {
              std::unique_lock lock(mutex_);
              if (!over_.wait_for(lock, kFloodEnds, [this] { return is_over_; }))
                  kill(pid, SIGKILL);
          }) {}
    ~EndOfFlood() {
        {
            const std::lock_guard lock(mutex_);
            is_over_ = true;
        }
        over_.notify_all();
        thread_.join();
    }
    EndOfFlood(const EndOfFlood&) = delete;
    EndOfFlood& operator=(const EndOfFlood&) = delete;

  private:
    std::mutex mutex_;
    std::condition_variable over_;
    bool is_over_ = false;
    std::thread thread_; // last, as it uses the others
};

// The CPU time of this thread since it was made: one that hears a flood out is busy all the while.
class Busy {
  public:
    std::chrono::nanoseconds time() const { return now() - begin_; }

  private:
    static std::chrono::nanoseconds now() {
        timespec spent{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
        return std::chrono::seconds(spent.tv_sec) + std::chrono::nanoseconds(spent.tv_nsec);
    }
    std::chrono::nanoseconds begin_ = now();
};
// A hundred times what the packets take that are heard; a sanitizer included.
constexpr auto kTooBusy = 8s;

std::unique_ptr<PythonEngine> make_engine() {
    engine::PythonSession session;
    session.identity = "test";
    session.targets = "a:b\n";
    session.lines = {0};
    auto engine = PythonEngine::create(session, {});
    EXPECT_TRUE(engine);
    return engine ? std::move(*engine) : nullptr;
}

TEST(Floods, OneThatSendsWithoutEndHidesNobody) {
    TargetProcess flooding({kPythons[0], source("targets.py"), "sleep"});
    TargetProcess quiet({kPythons[0], source("targets.py"), "sleep"});
    const EndOfFlood end(flooding.pid());
    const auto engine = make_engine();
    ASSERT_TRUE(engine->attach(flooding.pid(), 1, with_core(FLOOD_CORE)));
    ASSERT_TRUE(engine->attach(quiet.pid(), 1, with_core(TEST_CORE)));
    kill(quiet.pid(), SIGKILL);
    siginfo_t info{};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(quiet.pid()), &info, WEXITED | WNOWAIT), 0);
    size_t of_flood = 0;
    bool is_gone = false;
    for (int poll = 0; poll < 3; ++poll) {
        for (const PythonEvent& event : engine->poll()) {
            of_flood += event.process == flooding.pid();
            is_gone =
                is_gone || (event.process == quiet.pid() && event.kind == PythonEvent::Kind::kGone);
        }
    }
    EXPECT_TRUE(is_gone);
    EXPECT_LE(of_flood, 3u * 64u);
    EXPECT_TRUE(flooding.alive());
}

TEST(Floods, ADetachEndsWithItsDeadline) {
    TargetProcess flooding({kPythons[0], source("targets.py"), "sleep"});
    const EndOfFlood end(flooding.pid());
    const auto engine = make_engine();
    ASSERT_TRUE(engine->attach(flooding.pid(), 1, with_core(FLOOD_CORE)));
    const Busy busy;
    const auto detached = engine->detach(flooding.pid(), 200ms);
    EXPECT_LT(busy.time(), kTooBusy);
    ASSERT_FALSE(detached);
    EXPECT_EQ(detached.error().kind, ErrorKind::kTimeout) << detached.error().message;
    EXPECT_TRUE(engine->attached().empty());
    EXPECT_TRUE(flooding.alive());
    // Its end of the channel is of no use to it any more.
    EXPECT_TRUE(flooding.beats_in(10s));
}

// Some are ahead of the quiet one in any order, and use the time up.
TEST(Floods, ADetachOfAllHearsTheQuietOne) {
    TargetProcess first({kPythons[0], source("targets.py"), "sleep"});
    TargetProcess quiet({kPythons[0], source("targets.py"), "sleep"});
    TargetProcess last({kPythons[0], source("targets.py"), "sleep"});
    const EndOfFlood end_of_first(first.pid());
    const EndOfFlood end_of_last(last.pid());
    const auto engine = make_engine();
    for (const pid_t pid : {first.pid(), last.pid()})
        ASSERT_TRUE(engine->attach(pid, 1, with_core(FLOOD_CORE)));
    ASSERT_TRUE(engine->attach(quiet.pid(), 1, with_core(TEST_CORE)));
    const Busy busy;
    engine->detach_all(200ms);
    EXPECT_LT(busy.time(), kTooBusy);
    EXPECT_TRUE(engine->attached().empty());
    for (TargetProcess* target : {&first, &quiet, &last}) {
        EXPECT_TRUE(target->alive());
        EXPECT_TRUE(target->beats_in(10s));
    }
}

TEST(Floods, AListEndsByTimeAndByNumber) {
    TargetProcess target({kPythons[0], source("targets.py"), "sleep"});
    const EndOfFlood end(target.pid());
    const Busy busy;
    const auto empty =
        engine::list_python_functions(target.pid(), {}, with_core(FLOOD_CORE), 200ms);
    ASSERT_LT(busy.time(), kTooBusy);
    ASSERT_FALSE(empty);
    ASSERT_EQ(empty.error().kind, ErrorKind::kTimeout) << empty.error().message;
    const auto full = engine::list_python_functions(target.pid(), {}, with_core(FLOOD_CORE), 10min);
    ASSERT_FALSE(full);
    EXPECT_EQ(full.error().kind, ErrorKind::kInvalid) << full.error().message;
    EXPECT_NE(full.error().message.find("1048576"), std::string::npos) << full.error().message;
    EXPECT_TRUE(target.alive());
    EXPECT_TRUE(target.beats_in(10s));
}

// The abstract socket that a loader listens on, as /proc/net/unix shows it to all; empty: none.
std::string listening_socket() {
    std::ifstream file("/proc/net/unix");
    for (std::string line; std::getline(file, line);)
        if (const size_t at = line.find("@speedbump-"); at != std::string::npos)
            return line.substr(at + 1);
    return {};
}

// A process that connects to whatever socket a loader listens on, again and again.
class Connecting {
  public:
    Connecting()
        : count_(static_cast<uint64_t*>(mmap(nullptr, sizeof(uint64_t), PROT_READ | PROT_WRITE,
                                             MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
        pid_ = fork();
        if (pid_ != 0) return;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(static_cast<unsigned>(std::chrono::seconds(kFloodEnds).count()));
        for (;;) {
            const std::string name = listening_socket();
            while (!name.empty() && connect_to(name)) __atomic_add_fetch(count_, 1, 0);
        }
    }
    ~Connecting() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        munmap(count_, sizeof(uint64_t));
    }
    Connecting(const Connecting&) = delete;
    Connecting& operator=(const Connecting&) = delete;

    uint64_t count() const { return __atomic_load_n(count_, 0); }
    bool goes_on() const { return waitpid(pid_, nullptr, WNOHANG) == 0; }

  private:
    static bool connect_to(const std::string& name) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::memcpy(address.sun_path + 1, name.data(), name.size());
        const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
        const Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        return connect(socket.get(), reinterpret_cast<sockaddr*>(&address), size) == 0;
    }

    uint64_t* count_;
    pid_t pid_;
};

TEST(Floods, ThoseWhoConnectHoldNoRequestUp) {
    for (const std::string& python : kPythons) {
        TargetProcess deaf({python, source("awkward.py"), "deaf"});
        auto found = cpython::find_interpreters(deaf.pid());
        ASSERT_TRUE(found && !found->empty());
        if (found->front().minor < 14) continue; // has no debugger's way in
        TargetProcess running({python, source("targets.py"), "loop"});
        const test::Tracer tracer_of_deaf(deaf.pid());
        const test::Tracer tracer_of_running(running.pid());
        const Connecting flood;
        InjectOptions options = with_core(TEST_CORE);
        options.interpreter_timeout = 2s;
        const auto refused = inject::inject(deaf.pid(), options);
        ASSERT_FALSE(refused);
        EXPECT_NE(refused.error().message.find("taken back"), std::string::npos)
            << refused.error().message;
        EXPECT_GT(flood.count(), 0u);
        EXPECT_TRUE(flood.goes_on()) << "the request was held up";
        options.interpreter_timeout = 30s;
        const auto injection = inject::inject(running.pid(), options);
        EXPECT_TRUE(injection) << injection.error().message;
        EXPECT_TRUE(running.beats_in(10s));
    }
}

} // namespace
} // namespace speedbump
