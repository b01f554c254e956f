// SPDX-License-Identifier: MIT
// Getting into running interpreters, one property at a time; inject_stress does the numbers.
// CMake says which core to load (TEST_CORE), and which Pythons to try (TEST_PYTHONS).
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <sstream>

#include "engine/python/cores.h"
#include "engine/python/python_engine.h"
#include "inject/debugger_mailbox.h"
#include "inject/fire.h"
#include "inject/injector.h"
#include "inject/payload.h"
#include "inject/process_state.h"
#include "inject/seccomp_filter.h"
#include "inject/target_files.h"
#include "inject/target_lock.h"
#include "target_process.h"

namespace speedbump {
namespace {

using namespace std::chrono_literals;
using inject::inject;
using inject::InjectOptions;
using test::TargetProcess;

const std::vector<std::string> kPythons = test::paths_of(TEST_PYTHONS);

std::string source(const std::string& name) {
    return std::string(PROGRAM_DIR) + "/" + name;
}

InjectOptions with_core() {
    InjectOptions options;
    options.core = TEST_CORE;
    return options;
}

size_t entries(pid_t pid, const char* what) {
    size_t count = 0;
    if (DIR* directory = opendir(fmt::format("/proc/{}/{}", pid, what).c_str())) {
        while (readdir(directory)) ++count;
        closedir(directory);
    }
    return count;
}

bool eventually(std::chrono::milliseconds time, const std::function<bool()>& condition) {
    auto deadline = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < deadline) {
        if (condition()) return true;
        std::this_thread::sleep_for(1ms);
    }
    return condition();
}

// What lies after the code of each file that a process has mapped.
std::map<std::string, std::string> code_padding(pid_t pid) {
    std::map<std::string, std::string> all;
    auto modules = process::load_modules(pid);
    if (!modules) return all;
    process::RemoteMemory memory(pid);
    for (const auto& module : *modules) {
        for (const auto& range : module.code_padding()) {
            std::string bytes(range.end - range.start, '\0');
            bytes.resize(memory.read_some(range.start, bytes.data(), bytes.size()));
            all[module.path()] += bytes;
        }
    }
    return all;
}

class EveryPython : public testing::TestWithParam<std::string> {
  protected:
    const std::string& python() const { return GetParam(); }
};

TEST_P(EveryPython, LeavesNothingBehind) {
    TargetProcess target({python(), source("targets.py"), "sleep"});
    ASSERT_TRUE(target.alive());
    std::map<std::string, std::string> padding = code_padding(target.pid());
    EXPECT_GE(padding.size(), 2u);
    size_t threads = entries(target.pid(), "task");
    size_t descriptors = entries(target.pid(), "fd");
    for (int i = 0; i < 3; ++i) {
        auto injection = inject(target.pid(), with_core());
        ASSERT_TRUE(injection) << injection.error().message;
        EXPECT_EQ(entries(target.pid(), "task"), threads + 1);
        std::map<std::string, std::string> after = code_padding(target.pid());
        for (const auto& [path, bytes] : padding) EXPECT_TRUE(after[path] == bytes) << path;
        injection->channel.reset(); // as if we had died
        EXPECT_TRUE(eventually(1s, [&] { return entries(target.pid(), "task") == threads; }));
    }
    EXPECT_TRUE(eventually(1s, [&] { return entries(target.pid(), "fd") == descriptors; }));
    EXPECT_TRUE(target.beats_in(5s));
}

// The worst lateness of a wait (us) of a process that is attached to all the time.
uint64_t worst_lateness(const std::string& python) {
    TargetProcess target({python, source("timeouts.py")});
    EXPECT_TRUE(target.alive());
    int attached = 0;
    auto deadline = std::chrono::steady_clock::now() + 20s;
    while (target.beats() < 2 && std::chrono::steady_clock::now() < deadline) {
        auto injection = inject(target.pid(), with_core());
        EXPECT_TRUE(injection) << injection.error().message;
        if (!injection) break;
        ++attached;
        std::this_thread::sleep_for(25ms);
    }
    EXPECT_GE(target.beats(), 2u);
    EXPECT_GT(attached, 50); // some in each wait, on a busy machine too
    return target.beats() - 2;
}

// All Pythons side by side, as this is a test that waits.
TEST(Inject, KeepsRelativeTimeouts) {
    // Started over, a wait would be late by as much as it had waited at the last stop.
    static constexpr uint64_t kLate = 150'000;
    static constexpr uint64_t kEarly = 1'000'000'000; // timeouts.py: a wait that ended too soon
    std::vector<std::thread> each;
    for (const std::string& python : kPythons)
        each.emplace_back([&python] {
            const uint64_t worst = worst_lateness(python);
            EXPECT_LT(worst, kEarly) << python;
            EXPECT_LT(worst, kLate) << python << ": microseconds late at worst";
        });
    for (std::thread& one : each) one.join();
}

TEST_P(EveryPython, LosesNoSignal) {
    TargetProcess target({python(), source("awkward.py"), "deaf"});
    ASSERT_TRUE(target.alive());
    std::atomic<bool> stop{false};
    std::thread attacher([&] {
        while (!stop) (void)inject(target.pid(), with_core());
    });
    // A signal that comes between a program's look for signals and its call is lost without us,
    // too: one is sent only once the last was heard and the thread waits in accept() again.
    auto waits = [&] {
        auto call = inject::read_blocked_call(target.pid(), target.pid());
        return call && (call->number == SYS_accept || call->number == SYS_accept4);
    };
    std::mt19937 random(7);
    const int signals = 200;
    int lost = 0;
    for (int i = 0; i < signals; ++i) {
        while (!waits()) std::this_thread::yield();
        uint64_t before = target.beats();
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
        kill(target.pid(), SIGUSR1);
        lost += !eventually(2s, [&] { return target.beats() > before; });
    }
    stop = true;
    attacher.join();
    EXPECT_EQ(lost, 0);
    EXPECT_TRUE(target.alive());
}

// Whether awkward.py's `held` comes into its call, which a stop may have made the kernel resume.
bool comes_to_hold(const TargetProcess& held) {
    return eventually(10s, [&] {
        const auto call = inject::read_blocked_call(held.pid(), held.pid());
        return call && (call->number == SYS_clock_nanosleep || call->number == SYS_restart_syscall);
    });
}

// Whether it goes on when its call is ended. It would not, had anything of ours run: it looks.
bool goes_on_after_call(TargetProcess& held) {
    if (!comes_to_hold(held)) return false;
    const uint64_t beats = held.beats();
    kill(held.pid(), SIGUSR1);
    return eventually(10s, [&] { return held.beats() > beats || !held.alive(); }) && held.alive();
}

TEST_P(EveryPython, GivesUpHonestlyWhileTheLockIsHeld) {
    TargetProcess target({python(), source("awkward.py"), "held"});
    ASSERT_TRUE(target.alive());
    size_t descriptors = entries(target.pid(), "fd");
    InjectOptions options = with_core();
    options.interpreter_timeout = 200ms;
    ASSERT_TRUE(comes_to_hold(target));
    auto injection = inject(target.pid(), options);
    ASSERT_FALSE(injection);
    EXPECT_EQ(injection.error().kind, ErrorKind::kTimeout) << injection.error().message;
    EXPECT_NE(injection.error().message.find("holds the interpreter lock"), std::string::npos);
    // Three calls later nothing of ours has run.
    for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(goes_on_after_call(target)) << "status " << target.status();
        std::this_thread::sleep_for(20ms); // a thread asks for the lock when it has waited for 5 ms
    }
    EXPECT_TRUE(eventually(3s, [&] {
        kill(target.pid(), SIGUSR1);
        return entries(target.pid(), "fd") == descriptors;
    }));
    EXPECT_TRUE(target.alive()) << "status " << target.status();
}

TEST_P(EveryPython, ABrokenCoreIsRefusedAndForgotten) {
    TargetProcess target({python(), source("targets.py"), "sleep"});
    ASSERT_TRUE(target.alive());
    size_t threads = entries(target.pid(), "task");
    size_t descriptors = entries(target.pid(), "fd");
    InjectOptions options;
    options.core = source("inject_test.cpp");
    auto injection = inject(target.pid(), options);
    ASSERT_FALSE(injection);
    EXPECT_NE(injection.error().message.find("ImportError"), std::string::npos)
        << injection.error().message;
    EXPECT_TRUE(eventually(1s, [&] { return entries(target.pid(), "task") == threads; }));
    EXPECT_TRUE(eventually(1s, [&] { return entries(target.pid(), "fd") == descriptors; }));
    auto again = inject(target.pid(), with_core());
    EXPECT_TRUE(again) << again.error().message;
}

TEST_P(EveryPython, WaitsForAnInterpreterThatStarts) {
    for (int i = 0; i < 5; ++i) {
        pid_t child = fork();
        if (child == 0) {
            execlp(python().c_str(), python().c_str(), "-c", "import time; time.sleep(60)",
                   nullptr);
            _exit(127);
        }
        // Not before the exec: until then it is this program, which is no Python.
        bool seen = eventually(5s, [&] {
            auto found = cpython::find_interpreters(child);
            return found && !found->empty();
        });
        auto injection = inject(child, with_core());
        EXPECT_TRUE(seen);
        EXPECT_TRUE(injection) << injection.error().message;
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
    }
}

// Such as 3_12_1, usr_3_11 and sid_3_14.
std::string short_name(const std::string& python) {
    std::smatch version;
    std::regex_search(python, version, std::regex("3\\.[0-9]+[.0-9]*t?"));
    std::string name = version.str();
    if (python.starts_with("/usr/")) name = "usr." + name;
    if (python.find("/sid-") != std::string::npos) name = "sid." + name;
    std::replace(name.begin(), name.end(), '.', '_');
    return name;
}

INSTANTIATE_TEST_SUITE_P(Inject, EveryPython, testing::ValuesIn(kPythons),
                         [](const testing::TestParamInfo<std::string>& python) {
                             return short_name(python.param);
                         });

TEST(Inject, TwoAtATimeTakeTurns) {
    TargetProcess target({kPythons[0], source("targets.py"), "loop"});
    std::vector<std::thread> attachers;
    for (int i = 0; i < 4; ++i)
        attachers.emplace_back([&] {
            for (int cycle = 0; cycle < 5; ++cycle) {
                const auto injection = inject(target.pid(), with_core());
                EXPECT_TRUE(injection) << injection.error().message;
            }
        });
    for (std::thread& attacher : attachers) attacher.join();
    EXPECT_TRUE(target.beats_in(5s));
}

// The directory of a process in /proc can be locked by everybody; what is ours can't.
TEST(Inject, NobodyElseCanHoldTheLock) {
    TargetProcess target({kPythons[0], source("targets.py"), "sleep"});
    const Fd directory(open(fmt::format("/proc/{}", target.pid()).c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(flock(directory.get(), LOCK_EX | LOCK_NB), 0);
    InjectOptions options = with_core();
    options.safe_point_timeout = 1000ms;
    auto injection = inject(target.pid(), options);
    EXPECT_TRUE(injection) << injection.error().message;
    struct stat info {};
    ASSERT_EQ(stat("/run/speedbump/attach.lock", &info), 0);
    EXPECT_EQ(info.st_uid, 0u);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    ASSERT_EQ(stat("/run/speedbump", &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u);
}

// Two who see the process under different numbers, through mounts of /proc of their own.
TEST(Inject, TheLockIsOneForAllPidNameSpaces) {
    TargetProcess target({kPythons[0], source("targets.py"), "sleep"});
    const Fd pid_fd(static_cast<int>(syscall(SYS_pidfd_open, target.pid(), 0)));
    auto held = inject::lock_target(target.pid(), pid_fd, std::chrono::steady_clock::now());
    ASSERT_TRUE(held) << held.error().message;
    const pid_t other = fork();
    if (other == 0) {
        // The same process by another number: only its pidfd says who it is.
        auto second =
            inject::lock_target(target.pid() + 1, pid_fd, std::chrono::steady_clock::now() + 20ms);
        _exit(second ? 1 : second.error().kind == ErrorKind::kTimeout ? 0 : 2);
    }
    int status = -1;
    ASSERT_EQ(waitpid(other, &status, 0), other);
    struct statfs system {};
    ASSERT_EQ(fstatfs(pid_fd.get(), &system), 0);
    if (system.f_type != 0x50494446) GTEST_SKIP() << "pidfds have no inodes here (6.9)";
    EXPECT_EQ(status, 0);
}

// Which bytes of a file are locked, of the 16 from one on.
std::set<uint64_t> locked_bytes(const char* path, uint64_t first) {
    struct stat info {};
    if (stat(path, &info) != 0) return {};
    const std::string inode = fmt::format(":{} ", info.st_ino);
    std::ifstream locks("/proc/locks");
    std::set<uint64_t> locked;
    for (std::string line; std::getline(locks, line);) {
        const size_t at = line.find(inode);
        if (at == std::string::npos) continue;
        std::istringstream range(line.substr(at + inode.size()));
        uint64_t begin = 0, last = 0;
        range >> begin >> last; // one line of who has two, as it moves up
        for (uint64_t byte = 0; byte < 16; ++byte)
            if (first + byte >= begin && first + byte <= last) locked.insert(byte);
    }
    return locked;
}

// Who lets go of it and wants it again at once is behind those who wait for it.
TEST(Inject, TheLockIsHadInTheOrderOfAsking) {
    TargetProcess target({kPythons[0], source("targets.py"), "sleep"});
    const Fd pid_fd(static_cast<int>(syscall(SYS_pidfd_open, target.pid(), 0)));
    struct statfs system {};
    struct stat info {};
    ASSERT_EQ(fstatfs(pid_fd.get(), &system), 0);
    ASSERT_EQ(fstat(pid_fd.get(), &info), 0);
    if (system.f_type != 0x50494446) GTEST_SKIP() << "pidfds have no inodes here (6.9)";
    const auto take = [&] {
        auto lock =
            inject::lock_target(target.pid(), pid_fd, std::chrono::steady_clock::now() + 60s);
        EXPECT_TRUE(lock) << lock.error().message;
        return lock;
    };
    std::string order; // guarded by the lock that is tried
    auto held = take();
    std::vector<std::thread> others;
    std::set<uint64_t> taken = {0};
    for (uint64_t waiting = 1; waiting <= 3; ++waiting) {
        others.emplace_back([&, waiting] {
            const auto lock = take();
            order += static_cast<char>('0' + waiting);
        });
        taken.insert(waiting);
        EXPECT_TRUE(eventually(20s, [&] {
            return locked_bytes("/run/speedbump/attach.lock", info.st_ino * 16) == taken;
        })) << waiting;
    }
    held = make_error(ErrorKind::kNotFound, "let go of");
    held = take();
    EXPECT_EQ(order, "123");
    for (std::thread& other : others) other.join();
}

TEST(Inject, AStoppedProcessIsNamed) {
    TargetProcess target({kPythons[0], source("targets.py"), "sleep"});
    kill(target.pid(), SIGSTOP);
    ASSERT_TRUE(eventually(1s, [&] {
        auto refused = inject(target.pid(), with_core());
        return !refused && refused.error().message.find("stopped by a signal") != std::string::npos;
    }));
    kill(target.pid(), SIGCONT);
    auto injection = inject(target.pid(), with_core());
    EXPECT_TRUE(injection) << injection.error().message;
}

// Waits until a request stands in a process and puts another debugger's in its place.
void replace_request(pid_t pid, const inject::DebuggerMailbox& mailbox, const std::string& path) {
    const process::RemoteMemory memory(pid);
    ASSERT_TRUE(eventually(20s, [&] {
        const auto pending = memory.value<int32_t>(mailbox.pending_call);
        return pending && *pending == 1;
    }));
    iovec local{const_cast<char*>(path.c_str()), path.size() + 1};
    iovec remote{reinterpret_cast<void*>(mailbox.script_path), path.size() + 1};
    ASSERT_EQ(process_vm_writev(pid, &local, 1, &remote, 1, 0),
              static_cast<ssize_t>(path.size() + 1));
}

TEST(Inject, ARequestOfAnotherDebuggerIsLeftWhereItIs) {
    const std::string path = testing::TempDir() + "speedbump_other_debugger.py";
    for (const std::string& python : kPythons) {
        TargetProcess deaf({python, source("awkward.py"), "deaf"});
        auto found = cpython::find_interpreters(deaf.pid());
        ASSERT_TRUE(found && !found->empty());
        if (!inject::has_debugger_mailbox(found->front())) continue;
        const auto mailbox = inject::find_debugger_mailbox(deaf.pid(), found->front());
        ASSERT_TRUE(mailbox) << mailbox.error().message;
        const test::Tracer tracer(deaf.pid());
        InjectOptions options = with_core();
        options.interpreter_timeout = 3s;
        std::thread other([&] { replace_request(deaf.pid(), *mailbox, path); });
        const auto refused = inject::inject(deaf.pid(), options);
        other.join();
        ASSERT_FALSE(refused);
        EXPECT_NE(refused.error().message.find("another debugger"), std::string::npos)
            << refused.error().message;
        const process::RemoteMemory memory(deaf.pid());
        EXPECT_EQ(memory.value<int32_t>(mailbox->pending_call).value_or(0), 1);
        std::string left(path.size() + 1, '\0');
        ASSERT_TRUE(memory.read(mailbox->script_path, left.data(), left.size()));
        EXPECT_EQ(left.c_str(), path);
    }
}

// At the same addresses, so that all that was found out seems to be true of it.
TEST(Inject, AProgramThatIsExecdMeanwhileIsNotTouched) {
    TargetProcess target({"setarch", "-R", kPythons[0], source("awkward.py"), "again"});
    ASSERT_TRUE(target.beats_in(10s));
    const auto modules = process::load_modules(target.pid());
    ASSERT_TRUE(modules) << modules.error().message;
    auto fire = inject::Fire::prepare(target.pid(), *modules,
                                      {inject::thread_offset(), &inject::needed_calls()});
    ASSERT_TRUE(fire) << fire.error().message;
    kill(target.pid(), SIGUSR1);
    ASSERT_TRUE(eventually(10s, [&] {
        std::ifstream file(fmt::format("/proc/{}/cmdline", target.pid()));
        const std::string line{std::istreambuf_iterator<char>(file), {}};
        return line.find("slow") != std::string::npos;
    }));
    ASSERT_TRUE(target.beats_in(10s));
    const auto report = (*fire)->fire(std::chrono::steady_clock::now() + 5s);
    ASSERT_FALSE(report);
    EXPECT_NE(report.error().message.find("another program"), std::string::npos)
        << report.error().message;
    EXPECT_TRUE(target.beats_in(10s));
}

TEST(Inject, ATracedProcessIsNamedOrEnteredWithoutPtrace) {
    for (const std::string& python : kPythons) {
        TargetProcess target({python, source("targets.py"), "loop"});
        int ready[2];
        ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
        pid_t tracer = fork();
        if (tracer == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            char answer = ptrace(PTRACE_SEIZE, target.pid(), nullptr, nullptr) == 0 ? 'y' : 'n';
            if (write(ready[1], &answer, 1) != 1) _exit(1);
            for (;;) pause();
        }
        char answer = 0;
        ASSERT_EQ(read(ready[0], &answer, 1), 1);
        ASSERT_EQ(answer, 'y');
        auto injection = inject(target.pid(), with_core());
        auto found = cpython::find_interpreters(target.pid());
        ASSERT_TRUE(found && !found->empty());
        if (found->front().minor >= 14) {
            EXPECT_TRUE(injection) << injection.error().message;
            EXPECT_TRUE(injection && injection->by_debugger_support);
        } else {
            ASSERT_FALSE(injection);
            EXPECT_EQ(injection.error().kind, ErrorKind::kPermission);
            EXPECT_NE(injection.error().message.find(fmt::format("traced by process {}", tracer)),
                      std::string::npos)
                << injection.error().message;
        }
        kill(tracer, SIGKILL);
        waitpid(tracer, nullptr, 0);
        close(ready[0]);
        close(ready[1]);
        EXPECT_TRUE(target.beats_in(5s));
    }
}

std::set<std::string> scripts_in(const std::string& folder) {
    std::set<std::string> names;
    if (DIR* directory = opendir(folder.c_str())) {
        while (const dirent* entry = readdir(directory))
            if (std::string_view(entry->d_name).starts_with(".speedbump-"))
                names.insert(entry->d_name);
        closedir(directory);
    }
    return names;
}

// Whether all of these go.
bool go_from(const std::string& folder, const std::set<std::string>& names) {
    return eventually(10s, [&] {
        const auto left = scripts_in(folder);
        return std::none_of(names.begin(), names.end(),
                            [&](const std::string& name) { return left.contains(name); });
    });
}

TEST(Inject, ARequestThatIsNeverReadIsTakenBack) {
    for (const std::string& python : kPythons) {
        TargetProcess target({python, source("awkward.py"), "deaf"});
        auto found = cpython::find_interpreters(target.pid());
        ASSERT_TRUE(found && !found->empty());
        if (found->front().minor < 14) continue;
        pid_t tracer = fork();
        if (tracer == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            ptrace(PTRACE_SEIZE, target.pid(), nullptr, nullptr);
            for (;;) pause();
        }
        std::string status = fmt::format("/proc/{}/status", target.pid());
        ASSERT_TRUE(eventually(2s, [&] {
            std::ifstream file(status);
            std::string text(std::istreambuf_iterator<char>(file), {});
            return text.find(fmt::format("TracerPid:\t{}\n", tracer)) != std::string::npos;
        }));
        InjectOptions options = with_core();
        options.interpreter_timeout = 200ms;
        auto injection = inject(target.pid(), options);
        ASSERT_FALSE(injection);
        EXPECT_NE(injection.error().message.find("taken back"), std::string::npos)
            << injection.error().message;
        kill(tracer, SIGKILL);
        waitpid(tracer, nullptr, 0);
        // Now it runs Python again: nothing of ours may happen, no file may be there.
        uint64_t beats = target.beats();
        kill(target.pid(), SIGUSR1);
        EXPECT_TRUE(eventually(2s, [&] { return target.beats() > beats; }));
        // Those of tests beside this one go by themselves.
        EXPECT_TRUE(go_from("/tmp", scripts_in("/tmp")));
    }
}

// A target that is root in its own root, and exchanges /tmp for a link out of it all the time.
TEST(Files, AScriptNeverLeavesTheTargetsRoot) {
    char name[] = "/tmp/speedbump-root-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    const std::string root = name;
    const std::string outside = root + ".outside";
    for (const std::string& path : {root + "/tmp", outside})
        ASSERT_EQ(mkdir(path.c_str(), 0755), 0);
    std::ofstream(outside + "/secret") << "x";
    ASSERT_EQ(chmod((outside + "/secret").c_str(), 0600), 0);
    ASSERT_EQ(symlink(outside.c_str(), (root + "/link").c_str()), 0);
    const pid_t target = fork();
    if (target == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (chroot(root.c_str()) != 0 || chdir("/") != 0) _exit(1);
        for (;;)
            syscall(SYS_renameat2, AT_FDCWD, "/tmp", AT_FDCWD, "/link", 2 /* RENAME_EXCHANGE */);
    }
    const auto entries_of = [](const std::string& path) {
        size_t count = 0;
        if (DIR* directory = opendir(path.c_str())) {
            while (readdir(directory)) ++count;
            closedir(directory);
        }
        return count;
    };
    int made = 0;
    int refused = 0;
    const auto deadline = std::chrono::steady_clock::now() + 30s;
    while ((made < 1000 || refused < 1000) && std::chrono::steady_clock::now() < deadline) {
        auto script = inject::TargetScript::find_place(target);
        ++(script && script->write("pass") ? made : refused);
        ASSERT_EQ(entries_of(outside), 3u);
    }
    EXPECT_GE(made, 1000);
    EXPECT_GE(refused, 1000);
    kill(target, SIGKILL);
    waitpid(target, nullptr, 0);
    struct stat info {};
    ASSERT_EQ(stat((outside + "/secret").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    // Nothing is left in its /tmp either, wherever that is now.
    EXPECT_EQ(entries_of(root + "/tmp") + entries_of(root + "/link"), 2u + 3u);
    EXPECT_EQ(system(("rm -rf " + root + " " + outside).c_str()), 0);
}

// A Python that looks at no request, and that a tracer keeps from being entered in another way.
class DeafTarget {
  public:
    explicit DeafTarget(const std::string& python)
        : target_({python, source("awkward.py"), "deaf"}),
          tmp_(fmt::format("/proc/{}/root/tmp", target_.pid())) {
        tracer_ = fork();
        if (tracer_ == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            ptrace(PTRACE_SEIZE, target_.pid(), nullptr, nullptr);
            for (;;) pause();
        }
        EXPECT_TRUE(eventually(10s, [&] {
            auto status = inject::read_status(target_.pid(), target_.pid());
            return status && status->tracer == tracer_;
        }));
    }
    ~DeafTarget() { let_in(); }
    pid_t pid() const { return target_.pid(); }

    std::set<std::string> scripts() const { return scripts_in(tmp_); }
    bool removes(const std::set<std::string>& names) const { return go_from(tmp_, names); }
    // That it runs no script of ours when it looks, and can be entered as ever.
    void expect_as_before() {
        let_in();
        const uint64_t beats = target_.beats();
        kill(target_.pid(), SIGUSR1);
        EXPECT_TRUE(eventually(10s, [&] { return target_.beats() > beats; }));
        auto injection = inject(target_.pid(), with_core());
        EXPECT_TRUE(injection) << injection.error().message;
    }

  private:
    void let_in() {
        if (tracer_ > 0) {
            kill(tracer_, SIGKILL);
            waitpid(tracer_, nullptr, 0);
        }
        tracer_ = -1;
    }

    TargetProcess target_;
    std::string tmp_;
    pid_t tracer_ = -1;
};

bool takes_requests(const std::string& python) {
    TargetProcess target({python, source("awkward.py"), "deaf"});
    auto found = cpython::find_interpreters(target.pid());
    EXPECT_TRUE(found && !found->empty());
    return found && !found->empty() && found->front().minor >= 14;
}

// A program that gets into a target, under a name that nothing else has.
class Loader {
  public:
    Loader() {
        char directory[] = "/tmp/sb-loader-XXXXXX";
        EXPECT_NE(mkdtemp(directory), nullptr);
        directory_ = directory;
        name_ = fmt::format("sbl{}", getpid());
        path_ = directory_ + "/" + name_;
        EXPECT_EQ(symlink(INJECT_PROBE, path_.c_str()), 0);
    }
    ~Loader() {
        unlink(path_.c_str());
        rmdir(directory_.c_str());
    }
    const std::string& name() const { return name_; }

    // `first`: what the child does before it is the loader. `timeout`: of its request.
    pid_t start(pid_t target, std::chrono::milliseconds timeout,
                const std::function<void()>& first) const {
        const std::string pid = std::to_string(target);
        const std::string timeout_ms = std::to_string(timeout.count());
        const pid_t loader = fork();
        if (loader == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            const int nothing = ::open("/dev/null", O_WRONLY);
            dup2(nothing, STDERR_FILENO);
            first();
            execl(path_.c_str(), path_.c_str(), "--timeout", timeout_ms.c_str(), TEST_CORE,
                  pid.c_str(), static_cast<char*>(nullptr));
            _exit(127);
        }
        return loader;
    }

  private:
    std::string directory_;
    std::string name_;
    std::string path_;
};

std::string contents_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

// As `pkill -9 NAME` and `pkill -9 -f NAME`.
void kill_by_name(const std::string& name) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        const pid_t pid = std::atoi(entry.path().filename().c_str());
        if (pid <= 0) continue;
        const std::string shown =
            contents_of(entry.path() / "comm") + contents_of(entry.path() / "cmdline");
        if (shown.find(name) != std::string::npos) kill(pid, SIGKILL);
    }
}

// A cgroup (v2) that is removed at the end, when all that was in it must have ended.
class Group {
  public:
    Group() {
        std::istringstream mounts(contents_of("/proc/self/mountinfo"));
        for (std::string line; std::getline(mounts, line);) {
            if (line.find(" - cgroup2 ") == std::string::npos) continue;
            std::istringstream words(line);
            std::string top;
            for (int i = 0; i < 5; ++i) words >> top;
            path_ = fmt::format("{}/speedbump-test-{}", top, getpid());
            if (mkdir(path_.c_str(), 0755) != 0) path_.clear();
            return;
        }
    }
    ~Group() {
        if (path_.empty()) return;
        EXPECT_TRUE(eventually(10s, [&] { return rmdir(path_.c_str()) == 0; }));
    }
    bool is_there() const {
        return !path_.empty() && access((path_ + "/cgroup.kill").c_str(), W_OK) == 0;
    }
    void join() const { std::ofstream(path_ + "/cgroup.procs") << "0"; }
    void kill_all() const { std::ofstream(path_ + "/cgroup.kill") << "1"; }

  private:
    std::string path_;
};

// A loader that is killed while its request waits to be read, with all that can be taken for it.
TEST(Files, AKilledLoaderLeavesNoRequestAndNoFile) {
    const Loader program;
    const Group group;
    struct Way {
        std::string name;
        std::function<void()> first;
        std::function<void(pid_t)> kill;
    };
    std::vector<Way> ways = {
        {"by its PID", [] {}, [](pid_t loader) { kill(loader, SIGKILL); }},
        {"by its name", [] {}, [&](pid_t) { kill_by_name(program.name()); }},
    };
    for (const std::string name : {"by its cgroup", "by its cgroup, which was killed before"})
        if (group.is_there())
            ways.push_back({name, [&] { group.join(); }, [&](pid_t) { group.kill_all(); }});
    if (!group.is_there()) std::cerr << "not by cgroup.kill: no cgroup v2 can be made here\n";
    for (const std::string& python : kPythons) {
        if (!takes_requests(python)) continue;
        for (const Way& way : ways) {
            SCOPED_TRACE(python + ", " + way.name);
            DeafTarget target(python);
            const auto before = target.scripts();
            const pid_t loader = program.start(target.pid(), 60s, way.first);
            std::set<std::string> added;
            EXPECT_TRUE(eventually(20s, [&] {
                added = target.scripts();
                for (const std::string& name : before) added.erase(name);
                return !added.empty();
            }));
            way.kill(loader);
            kill(loader, SIGKILL);
            waitpid(loader, nullptr, 0);
            EXPECT_TRUE(target.removes(added));
            target.expect_as_before();
        }
    }
}

// The name of the script that a system call makes; empty where it makes none.
std::string script_made_by(pid_t pid, const __ptrace_syscall_info& call) {
    if (call.op != PTRACE_SYSCALL_INFO_ENTRY || call.entry.nr != SYS_openat ||
        !(call.entry.args[2] & O_CREAT))
        return {};
    char name[64] = {};
    process::RemoteMemory(pid).read_some(call.entry.args[1], name, sizeof(name) - 1);
    return std::string_view(name).starts_with(".speedbump-") ? name : "";
}

struct StopAndKill {
    std::string script; // empty: it made none
    bool killed = false;
};

// Lets a loader run, and kills it where it stops for the `stop`th time after the call that makes a
// script has begun: it stops before and after each system call.
StopAndKill kill_at(pid_t loader, int stop) {
    StopAndKill result;
    int status = 0;
    waitpid(loader, &status, 0);
    ptrace(PTRACE_SETOPTIONS, loader, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    int signal_number = 0;
    for (int stops = 0; WIFSTOPPED(status); waitpid(loader, &status, 0)) {
        signal_number = WSTOPSIG(status) == (SIGTRAP | 0x80) ? 0 : WSTOPSIG(status);
        if (signal_number == SIGSTOP || signal_number == SIGTRAP) signal_number = 0;
        if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
            __ptrace_syscall_info call = {};
            ptrace(PTRACE_GET_SYSCALL_INFO, loader, sizeof(call), &call);
            if (result.script.empty()) result.script = script_made_by(loader, call);
            if (!result.script.empty() && ++stops == stop) {
                kill(loader, SIGKILL);
                result.killed = true;
            }
        }
        ptrace(PTRACE_SYSCALL, loader, nullptr, signal_number);
    }
    return result;
}

// There is no moment in which a file or a request is nobody's to take back.
TEST(Files, ALoaderKilledAtAnySystemCallLeavesNothing) {
    const auto python = std::find_if(kPythons.begin(), kPythons.end(), takes_requests);
    if (python == kPythons.end()) GTEST_SKIP() << "no Python of 3.14 or later";
    const Loader program;
    DeafTarget target(*python);
    int kills = 0;
    for (int stop = 1;; ++stop) {
        SCOPED_TRACE(stop);
        const pid_t loader = program.start(target.pid(), 50ms, [] {
            ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
            raise(SIGSTOP);
        });
        const StopAndKill done = kill_at(loader, stop);
        ASSERT_FALSE(done.script.empty());
        ASSERT_TRUE(target.removes({done.script}));
        if (!done.killed) break;
        ++kills;
    }
    std::cerr << "killed at " << kills << " moments\n";
    EXPECT_GE(kills, 20);
    target.expect_as_before();
}

TEST(Inject, NoPythonAndNoProcess) {
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    auto refused = inject(child, with_core());
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::kNotFound);
    EXPECT_NE(refused.error().message.find("no Python"), std::string::npos);
    auto gone = inject(child, with_core());
    ASSERT_FALSE(gone);
    EXPECT_EQ(gone.error().kind, ErrorKind::kNotFound);
}

TEST(Engine, ReportsExitAndExec) {
    TargetProcess target({kPythons[0], source("targets.py"), "sleep"});
    engine::PythonSession session;
    session.identity = "test";
    session.targets = "a:b\n";
    session.lines = {0};
    auto engine = engine::PythonEngine::create(session, {});
    ASSERT_TRUE(engine);
    auto attachment = (*engine)->attach(target.pid(), 1, with_core());
    ASSERT_TRUE(attachment) << attachment.error().message;
    auto twice = (*engine)->attach(target.pid(), 1, with_core());
    ASSERT_FALSE(twice);
    EXPECT_EQ(twice.error().kind, ErrorKind::kInvalid);
    EXPECT_TRUE((*engine)->poll().empty());
    kill(target.pid(), SIGKILL);
    std::vector<engine::PythonEvent> events;
    EXPECT_TRUE(eventually(2s, [&] {
        events = (*engine)->poll();
        return !events.empty();
    }));
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].kind, engine::PythonEvent::Kind::kGone);
    EXPECT_TRUE((*engine)->attached().empty());
}

TEST(Engine, SeveralAtATimeAndTheHeldOneDelaysNobody) {
    TargetProcess held({kPythons[0], source("awkward.py"), "held"});
    TargetProcess one({kPythons[0], source("targets.py"), "sleep"});
    TargetProcess two({kPythons[0], source("targets.py"), "loop"});
    engine::PythonSession session;
    session.identity = "test";
    session.targets = std::string(100000, '#') + "\na:b\n";
    auto engine = engine::PythonEngine::create(session, {});
    ASSERT_TRUE(engine);
    ASSERT_TRUE(comes_to_hold(held));
    InjectOptions options = with_core();
    options.interpreter_timeout = 5s;
    const pid_t pids[] = {held.pid(), one.pid(), 0x3ffffff, two.pid()};
    auto results = (*engine)->attach(pids, 1, options);
    ASSERT_EQ(results.size(), 4u);
    EXPECT_FALSE(results[0]);
    EXPECT_TRUE(results[1]) << results[1].error().message;
    EXPECT_FALSE(results[2]);
    EXPECT_TRUE(results[3]) << results[3].error().message;
    EXPECT_EQ((*engine)->attached().size(), 2u);
    EXPECT_TRUE(goes_on_after_call(held)) << "status " << held.status();
}

TEST(Engine, NamesTheCommandThatBuildsACore) {
    cpython::Interpreter interpreter;
    interpreter.major = 3;
    interpreter.minor = 12;
    interpreter.path = "/usr/bin/python3.12";
    auto core = engine::find_core(interpreter, {"/nowhere"});
    ASSERT_FALSE(core);
    EXPECT_EQ(core.error().kind, ErrorKind::kUnsupported);
    EXPECT_NE(core.error().hint.find("cmake"), std::string::npos);
    EXPECT_NE(core.error().hint.find("3.12"), std::string::npos);
}

std::string contents(int fd) {
    struct stat info {};
    EXPECT_EQ(fstat(fd, &info), 0);
    std::string bytes(static_cast<size_t>(info.st_size), '\0');
    EXPECT_EQ(pread(fd, bytes.data(), bytes.size(), 0), info.st_size);
    return bytes;
}

// The real core: functions are found, slowed as the table says, and as fast as before afterwards.
TEST_P(EveryPython, TheCoreSlowsAndLetsGo) {
    TargetProcess target({python(), source("awkward.py"), "work"});
    ASSERT_TRUE(target.alive());
    test::TableFiles table = test::make_table(1, 2000000);
    engine::PythonSession session;
    session.identity = "test";
    session.targets = "__main__:work delay=2ms\n";
    session.lines = {0};
    session.settings = table.settings.get();
    session.counters = table.counters.get();
    auto engine = engine::PythonEngine::create(session, engine::core_directories());
    ASSERT_TRUE(engine);
    auto attachment = (*engine)->attach(target.pid());
    if (!attachment && attachment.error().kind == ErrorKind::kUnsupported)
        GTEST_SKIP() << attachment.error().message;
    ASSERT_TRUE(attachment) << attachment.error().message;
    ASSERT_EQ(attachment->matches.size(), 1u);
    EXPECT_EQ(attachment->matches[0].name, "work");
    EXPECT_EQ(attachment->matches[0].line, 0u);
    // Each beat but the first, which may be under way, takes the delay, whoever else has the CPU.
    const auto begin = std::chrono::steady_clock::now();
    const uint64_t before = target.beats();
    EXPECT_TRUE(target.beats_in(20s, 100));
    const uint64_t beats = target.beats() - before;
    const std::chrono::nanoseconds spent = std::chrono::steady_clock::now() - begin;
    ASSERT_GT(beats, 0u);
    EXPECT_GE(spent.count(), static_cast<int64_t>(beats - 1) * 1'980'000);
    auto detached = (*engine)->detach(target.pid(), 5s);
    EXPECT_TRUE(detached) << detached.error().message;
    // What a hook sees it counts: there is none any more.
    const std::string counted = contents(table.counters.get());
    EXPECT_TRUE(target.beats_in(10s, 2000));
    EXPECT_TRUE(contents(table.counters.get()) == counted);
}

} // namespace
} // namespace speedbump
