// SPDX-License-Identifier: MIT
// Targets under limits: each can be entered, or the refusal names the limit, and the target lives.
// CMake says which core to load (TEST_CORE), and which Pythons to try (TEST_PYTHONS), and where the
// library tight_spots is.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>

#include "../../cpu_time.h"
#include "engine/python/cores.h"
#include "engine/python/python_engine.h"
#include "inject/injector.h"
#include "inject/machine.h"
#include "inject/process_state.h"
#include "inject/seccomp_filter.h"
#include "target_process.h"
#include "util/clock.h"

namespace speedbump {
namespace {

using namespace std::chrono_literals;
using inject::Filter;
using inject::inject;
using inject::InjectOptions;
using test::TargetProcess;

const std::string kLibrary = TIGHT_SPOTS;
const std::vector<std::string> kPythons = test::paths_of(TEST_PYTHONS);

const std::string kProgram = std::string(PROGRAM_DIR) + "/limits.py";

InjectOptions with_core(std::chrono::milliseconds safe_point_timeout = 5000ms) {
    InjectOptions options;
    options.core = TEST_CORE;
    options.safe_point_timeout = safe_point_timeout;
    return options;
}

TargetProcess start(const std::string& python, const std::string& kind,
                    std::vector<std::string> arguments = {}) {
    return TargetProcess({python, kProgram, kind}, std::move(arguments));
}

void expect_refused(TargetProcess& target, const std::string& text,
                    const InjectOptions& options = with_core()) {
    ASSERT_TRUE(target.alive());
    auto injection = inject(target.pid(), options);
    ASSERT_FALSE(injection) << "not refused, expected: " << text;
    EXPECT_NE((injection.error().message + " " + injection.error().hint).find(text),
              std::string::npos)
        << injection.error().message << " " << injection.error().hint;
    EXPECT_TRUE(target.alive()) << "status " << target.status();
}

void expect_entered(TargetProcess& target) {
    ASSERT_TRUE(target.alive());
    auto injection = inject(target.pid(), with_core());
    EXPECT_TRUE(injection) << injection.error().message;
    EXPECT_TRUE(target.beats_in(5s)) << "status " << target.status();
}

sock_filter step(uint16_t code, uint32_t k, uint8_t jt = 0, uint8_t jf = 0) {
    return {code, jt, jf, k};
}

// Answers `special` for the calls of a list, and `otherwise` for all others.
Filter make_filter(const std::set<int>& calls, uint32_t special, uint32_t otherwise) {
    Filter filter = {step(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
    for (int call : calls) {
        filter.push_back(step(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 1));
        filter.push_back(step(BPF_RET | BPF_K, special));
    }
    filter.push_back(step(BPF_RET | BPF_K, otherwise));
    return filter;
}

// A file that lasts as long as the object.
struct FilterFile {
    explicit FilterFile(const Filter& filter) {
        char name[] = "/tmp/speedbump-filter-XXXXXX";
        const Fd file(mkstemp(name));
        path = name;
        const auto size = static_cast<ssize_t>(filter.size() * sizeof(sock_filter));
        EXPECT_EQ(write(file.get(), filter.data(), static_cast<size_t>(size)), size);
    }
    ~FilterFile() { unlink(path.c_str()); }
    std::string path;
};

class EveryPython : public testing::TestWithParam<size_t> {
  protected:
    const std::string& python() const { return kPythons[GetParam()]; }
};

std::set<int> needed_numbers(
    const std::vector<inject::NeededCall>& calls = inject::needed_calls()) {
    std::set<int> numbers;
    for (const inject::NeededCall& call : calls) numbers.insert(call.number);
    return numbers;
}

// As the default of containers: all but a few, and clone3 does not exist.
TEST_P(EveryPython, AContainersFilterIsNoReason) {
    const FilterFile file(make_filter({SYS_clone3}, SECCOMP_RET_ERRNO | ENOSYS, SECCOMP_RET_ALLOW));
    TargetProcess target = start(python(), "filter", {file.path});
    ASSERT_TRUE(target.beats_in(10s));
    expect_entered(target);
}

// Killed for every call that is not in the list of those that are needed: the list is complete.
TEST_P(EveryPython, ExactlyTheNeededCalls) {
    const FilterFile file(
        make_filter(needed_numbers(), SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS));
    TargetProcess target = start(python(), "filter", {file.path});
    ASSERT_TRUE(target.beats_in(10s)) << "status " << target.status();
    expect_entered(target);

    engine::PythonSession session;
    session.identity = "test";
    session.targets = "__main__:beat delay=1ms\n";
    session.lines = {0};
    const test::TableFiles table = test::make_table(1, 1000000);
    session.settings = table.settings.get();
    session.counters = table.counters.get();
    auto engine = engine::PythonEngine::create(session, engine::core_directories());
    ASSERT_TRUE(engine);
    auto attachment = (*engine)->attach(target.pid());
    if (!attachment && attachment.error().kind == ErrorKind::kUnsupported)
        GTEST_SKIP() << attachment.error().message;
    ASSERT_TRUE(attachment) << attachment.error().message << ", status " << target.status();
    EXPECT_TRUE(target.beats_in(5s)) << "status " << target.status();
    auto detached = (*engine)->detach(target.pid(), 5s);
    EXPECT_TRUE(detached) << detached.error().message;
    EXPECT_TRUE(target.beats_in(5s)) << "status " << target.status();
}

TEST(Seccomp, EveryNeededCallIsNamedWhereItWouldKill) {
    // These the program itself makes, in its sleep.
    std::set<int> own = {SYS_restart_syscall, inject::kPollCall};
    for (int number : needed_numbers()) {
        if (own.contains(number)) continue;
        const FilterFile file(make_filter({number}, SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW));
        TargetProcess target = start(kPythons[0], "filter", {file.path});
        ASSERT_TRUE(target.beats_in(10s)) << number;
        SCOPED_TRACE(number);
        expect_refused(target, "does not allow");
        EXPECT_TRUE(target.beats_in(5s)) << "status " << target.status();
    }
}

// A core that a program under a filter sees at no path, nor by /proc, which it has not.
class NoProc {
  public:
    NoProc() {
        char name[] = "/tmp/speedbump-core-XXXXXX";
        folder_ = mkdtemp(name);
        options_ = with_core();
        options_.core = folder_ + "/core.so";
        std::ofstream(options_.core, std::ios::binary)
            << std::ifstream(TEST_CORE, std::ios::binary).rdbuf();
    }
    ~NoProc() {
        unlink(options_.core.c_str());
        rmdir(folder_.c_str());
    }
    NoProc(const NoProc&) = delete;
    NoProc& operator=(const NoProc&) = delete;

    const InjectOptions& options() const { return options_; }
    TargetProcess start(const std::string& filter) const {
        const char* hide = "mount -t tmpfs none \"$0\" && mount -t tmpfs none /proc && exec \"$@\"";
        return TargetProcess({"unshare", "--mount", "--propagation", "private", "sh", "-c", hide,
                              folder_, kPythons[0], kProgram, "filter"},
                             {filter});
    }

  private:
    std::string folder_;
    InjectOptions options_;
};

TEST(Seccomp, ExactlyTheNeededCallsWhereThereIsNoProc) {
    const auto numbers = needed_numbers(inject::calls_without_proc());
    const NoProc place;
    const FilterFile file(make_filter(numbers, SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS));
    TargetProcess target = place.start(file.path);
    ASSERT_TRUE(target.beats_in(10s)) << "status " << target.status();
    auto injection = inject(target.pid(), place.options());
    EXPECT_TRUE(injection) << injection.error().message;
    EXPECT_TRUE(target.beats_in(5s)) << "status " << target.status();
    for (int number : numbers) {
        if (needed_numbers().contains(number)) continue;
        SCOPED_TRACE(number);
        const FilterFile none(make_filter({number}, SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW));
        TargetProcess other = place.start(none.path);
        ASSERT_TRUE(other.beats_in(10s)) << "status " << other.status();
        expect_refused(other, "does not allow", place.options());
        EXPECT_TRUE(other.beats_in(5s)) << "status " << other.status();
    }
}

// Nobody but its tracer can read the filter, and what runs for us would meet it.
TEST_P(EveryPython, AFilterThatCannotBeReadIsAReason) {
    const FilterFile file(make_filter({SYS_socket}, SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW));
    TargetProcess target = start(python(), "filter", {file.path});
    ASSERT_TRUE(target.beats_in(10s));
    const test::Tracer tracer(target.pid());
    expect_refused(target, "traced by process");
    EXPECT_TRUE(target.beats_in(5s)) << "status " << target.status();
}

TEST_P(EveryPython, SaysWhatAFilterWouldDo) {
    for (const auto& [answer, text] :
         {std::pair{SECCOMP_RET_KILL_THREAD, "socketpair (it would be killed)"},
          std::pair{SECCOMP_RET_ERRNO | EPERM, "socketpair (the call would fail: Operation not"},
          std::pair{SECCOMP_RET_TRAP, "socketpair (it would get a SIGSYS)"},
          std::pair{SECCOMP_RET_TRACE, "socketpair (a tracer would be asked)"}}) {
        const FilterFile file(make_filter({SYS_socketpair}, answer, SECCOMP_RET_ALLOW));
        TargetProcess target = start(python(), "filter", {file.path});
        ASSERT_TRUE(target.beats_in(10s));
        expect_refused(target, text);
    }
}

// Whether each thread of limits.py's `smallest` comes into the call that it stays in: its beat is
// before.
bool comes_to_rest(TargetProcess& target) {
    const pid_t pid = target.pid();
    const auto rests = [pid](pid_t tid) {
        const auto call = inject::read_blocked_call(pid, tid);
        return call && call->number == (tid == pid ? SYS_recvfrom : SYS_clock_nanosleep);
    };
    for (const auto end = Clock::now() + kWithoutEnd; target.alive() && Clock::now() < end;) {
        const auto threads = inject::threads_of_program(pid);
        if (!threads.empty() && std::all_of(threads.begin(), threads.end(), rests)) return true;
        std::this_thread::sleep_for(1ms);
    }
    return false;
}

TEST_P(EveryPython, ADeepThreadIsLeftAlone) {
    for (const char* left : {"3000", "5000", "10000"}) {
        TargetProcess only = start(python(), "smallest", {kLibrary, left});
        ASSERT_TRUE(comes_to_rest(only));
        expect_refused(only, "bytes of stack left, and an attach needs", with_core(300ms));
        TargetProcess with_another = start(python(), "small", {kLibrary, left});
        expect_entered(with_another);
    }
}

// strace, which makes each ptrace() of this program take longer, for as long as the object lives.
class SlowPtrace {
  public:
    explicit SlowPtrace(std::chrono::microseconds delay) {
        const std::string own = std::to_string(getpid());
        const std::string inject = fmt::format("inject=ptrace:delay_enter={}", delay.count());
        pid_ = fork();
        if (pid_ == 0) {
            execlp("strace", "strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=ptrace", "-e",
                   inject.c_str(), "-p", own.c_str(), nullptr);
            _exit(127);
        }
        for (int i = 0; i < 10000 && !is_traced(); ++i) std::this_thread::sleep_for(1ms);
    }
    ~SlowPtrace() {
        kill(pid_, SIGTERM);
        waitpid(pid_, nullptr, 0);
    }
    SlowPtrace(const SlowPtrace&) = delete;
    SlowPtrace& operator=(const SlowPtrace&) = delete;
    static bool is_traced() {
        std::ifstream status("/proc/self/status");
        for (std::string line; std::getline(status, line);)
            if (line.starts_with("TracerPid:")) return line != "TracerPid:\t0";
        return false;
    }

  private:
    pid_t pid_ = -1;
};

// Each may take a moment to come to its first stop, but not all of them one after another.
TEST(ManyThreads, TheFirstLookAtAllOfThemEnds) {
    if (access("/usr/bin/strace", X_OK) != 0) GTEST_SKIP() << "no strace here";
    TargetProcess target = start(kPythons[0], "smallest", {kLibrary, "3000", "40"});
    ASSERT_TRUE(comes_to_rest(target));
    // Six such calls for each thread; more than 2 s for 40 of them.
    const SlowPtrace slow(30ms);
    ASSERT_TRUE(SlowPtrace::is_traced());
    auto injection = inject(target.pid(), with_core(100ms));
    ASSERT_FALSE(injection);
    const std::string& message = injection.error().message;
    const size_t at = message.find(" in ");
    ASSERT_NE(at, std::string::npos) << message;
    EXPECT_LE(std::atoi(message.c_str() + at + 4), 14) << message;
}

TEST_P(EveryPython, AReceiveOfAllComesBackWhole) {
    TargetProcess target = start(python(), "waitall");
    ASSERT_TRUE(target.alive());
    for (int i = 0; i < 5; ++i) {
        // In its one call at most times; refused is as good as done.
        auto injection = inject(target.pid(), with_core(150ms));
        EXPECT_TRUE(injection || injection.error().kind == ErrorKind::kTimeout);
        EXPECT_TRUE(target.beats_in(5s)) << "a short receive, status " << target.status();
    }
}

TEST_P(EveryPython, MemoryThatIsWrittenMayNotBeExecuted) {
    TargetProcess target = start(python(), "strictwx");
    expect_refused(target, "memory-deny-write-execute");
    EXPECT_TRUE(target.beats_in(5s));
}

TEST_P(EveryPython, ALimitOfMemory) {
    TargetProcess none = start(python(), "memory", {"100000"});
    expect_refused(none, "limit of memory");
    EXPECT_TRUE(none.beats_in(5s)) << "status " << none.status();
    TargetProcess no_thread = start(python(), "memory", {"1000000"});
    expect_refused(no_thread, "limit of tasks or memory");
    EXPECT_TRUE(no_thread.beats_in(5s)) << "status " << no_thread.status();
}

// None of its own is closed, however many it can take.
TEST_P(EveryPython, ALimitOfDescriptors) {
    for (const char* left : {"0", "2", "3"}) {
        SCOPED_TRACE(left);
        TargetProcess target = start(python(), "files", {left});
        expect_refused(target, "limit of descriptors");
        EXPECT_TRUE(target.beats_in(5s)) << "status " << target.status();
    }
    TargetProcess enough = start(python(), "files", {"12"});
    expect_entered(enough);
}

TEST_P(EveryPython, ALimitOfTasks) {
    TargetProcess target = start(python(), "tasks");
    expect_refused(target, "limit of tasks");
    EXPECT_TRUE(target.beats_in(5s));
}

// Where cgroups with the controller can be made: in the hierarchy of its own of cgroup v1, or v2's.
std::string pids_hierarchy() {
    const std::string own = "/sys/fs/cgroup/pids";
    if (access((own + "/cgroup.procs").c_str(), W_OK) == 0) return own;
    std::ofstream("/sys/fs/cgroup/cgroup.subtree_control") << "+pids";
    std::ifstream controllers("/sys/fs/cgroup/cgroup.subtree_control");
    for (std::string name; controllers >> name;)
        if (name == "pids") return "/sys/fs/cgroup";
    return "";
}

TEST_P(EveryPython, ALimitOfTasksOfItsCgroup) {
    const std::string hierarchy = pids_hierarchy();
    if (hierarchy.empty()) GTEST_SKIP() << "no pids controller here";
    TargetProcess target({python(), std::string(PROGRAM_DIR) + "/targets.py", "sleep"});
    const std::string group = fmt::format("{}/speedbump-test-{}", hierarchy, getpid());
    ASSERT_EQ(mkdir(group.c_str(), 0700), 0);
    std::ofstream(group + "/cgroup.procs") << target.pid();
    std::ofstream(group + "/pids.max") << 1;
    expect_refused(target, "limit of tasks");
    std::ofstream(hierarchy + "/cgroup.procs") << target.pid();
    EXPECT_EQ(rmdir(group.c_str()), 0);
    EXPECT_TRUE(target.beats_in(5s));
}

pid_t only_child(pid_t pid) {
    std::ifstream file(fmt::format("/proc/{0}/task/{0}/children", pid));
    pid_t child = 0;
    file >> child;
    return child;
}

// The child that limits.py's `vfork` waits for, once it is not the one before; 0: there is none.
pid_t next_child(TargetProcess& parent, pid_t before) {
    for (const auto end = Clock::now() + kWithoutEnd; parent.alive() && Clock::now() < end;) {
        const pid_t child = only_child(parent.pid());
        const auto status = inject::read_status(parent.pid(), parent.pid());
        if (child > 0 && child != before && status && status->state == 'D') return child;
        std::this_thread::sleep_for(1ms);
    }
    return 0;
}

// The interpreter has no part in it.
TEST(Vfork, ItsChildIsNotEntered) {
    TargetProcess target = start(kPythons[0], "vfork", {kLibrary});
    pid_t child = 0;
    for (int i = 0; i < 3; ++i) {
        child = next_child(target, child);
        ASSERT_GT(child, 0);
        auto injection = inject(child, with_core(200ms));
        ASSERT_FALSE(injection);
        EXPECT_NE(injection.error().message.find("on the memory of its parent"), std::string::npos)
            << injection.error().message;
        kill(child, SIGKILL);
    }
    // The parent's only thread can't be stopped meanwhile.
    child = next_child(target, child);
    ASSERT_GT(child, 0);
    expect_refused(target, "uninterruptibly", with_core(200ms));
    kill(child, SIGKILL);
    EXPECT_GT(next_child(target, child), 0) << "status " << target.status();
}

INSTANTIATE_TEST_SUITE_P(Limits, EveryPython, testing::Range(size_t{0}, kPythons.size()),
                         [](const testing::TestParamInfo<size_t>& python) {
                             return std::to_string(python.param);
                         });

} // namespace
} // namespace speedbump
