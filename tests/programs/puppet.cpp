// SPDX-License-Identifier: MIT
// Does what standard input says, a command a line, and answers each with a line:
//
//   call NAME N               N calls: "NS", the time of all
//   each NAME N PAUSE_US      N calls with pauses: the time of each in ns
//   cost NAME N NS            N calls, each after NS of reading a clock: the time of each in ns,
//                             and the CPU time of each in ns
//   first NAME NS MS          calls every 0.2 ms until one takes NS or more: the time until that
//                             one began in ns; "never" after MS
//   repeat NAME               calls for ever in a thread: "repeats"
//   log NAME PATH             calls for ever in a thread that may make no system call any more, and
//                             writes to this file when each began and ended (call_log.h): "begun"
//   threads T NAME N          N calls in each of T threads: "NS"
//   load PATH                 dlopen: "loaded"
//   child SOCKET              forks a puppet that takes its commands from this Unix socket: "PID"
//   orphan SOCKET             the same, but its parent ends before this answers
//   newpid SOCKET             the same, in a PID namespace of its own
//   births N NAME             N times: a child is born, makes one call, ends: the time of each
//   exec PATH                 another program in this one's place
//   pid, exit STATUS, signal NUMBER
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "call_log.h"
#include "work.h"

namespace {

using Function = void (*)();

long now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// What this thread has used: time in which others had the CPU is not in it.
long cpu_now_ns() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

// Unbuffered, so that a child inherits nothing half read.
bool read_line(std::string& line) {
    line.clear();
    for (char c = 0; read(STDIN_FILENO, &c, 1) == 1;) {
        if (c == '\n') return true;
        line += c;
    }
    return false;
}

void answer(const std::string& text) {
    const std::string line = text + "\n";
    if (write(STDOUT_FILENO, line.data(), line.size()) < 0) _exit(3);
}

[[noreturn]] void fail(const std::string& what) {
    answer("error: " + what + ": " + std::strerror(errno));
    _exit(2);
}

Function find(const std::string& name) {
    if (name == "work_push") return work_push;
    if (name == "work_nop") return work_nop;
    if (name == "work_step") return work_step;
    if (name == "work_late") return work_late;
    void* symbol = dlsym(RTLD_DEFAULT, name.c_str());
    if (!symbol) fail("no function " + name);
    return reinterpret_cast<Function>(symbol);
}

long time_calls(Function function, long count) {
    const long start = now_ns();
    for (long i = 0; i < count; ++i) function();
    return now_ns() - start;
}

void take_commands_from(const std::string& path) {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
        fail("connect " + path);
    dup2(fd, STDIN_FILENO);
    dup2(fd, STDOUT_FILENO);
    close(fd);
}

// In the child: true.
bool fork_child(const std::string& socket) {
    const pid_t pid = fork();
    if (pid < 0) fail("fork");
    if (pid == 0) {
        take_commands_from(socket);
        return true;
    }
    answer(std::to_string(pid));
    return false;
}

// In the child: true. Its parent has ended, or, with a PID namespace of its own, waits for it.
bool fork_grandchild(const std::string& socket, bool new_namespace) {
    int ends[2];
    if (pipe(ends) != 0) fail("pipe");
    const pid_t middle = fork();
    if (middle < 0) fail("fork");
    if (middle == 0) {
        if (new_namespace && unshare(CLONE_NEWPID) != 0) fail("unshare");
        const pid_t pid = fork();
        if (pid < 0) fail("fork");
        if (pid == 0) {
            take_commands_from(socket);
            return true;
        }
        if (write(ends[1], &pid, sizeof(pid)) != sizeof(pid)) _exit(1);
        if (new_namespace) waitpid(pid, nullptr, 0);
        _exit(0);
    }
    pid_t pid = 0;
    if (read(ends[0], &pid, sizeof(pid)) != sizeof(pid)) fail("read");
    close(ends[0]);
    close(ends[1]);
    if (!new_namespace) waitpid(middle, nullptr, 0);
    answer(std::to_string(pid));
    return false;
}

void births(long count, Function function) {
    auto* spent = static_cast<long*>(
        mmap(nullptr, sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    if (spent == MAP_FAILED) fail("mmap");
    std::string text;
    for (long i = 0; i < count; ++i) {
        const pid_t pid = fork();
        if (pid < 0) fail("fork");
        if (pid == 0) {
            *spent = time_calls(function, 1);
            _exit(0);
        }
        waitpid(pid, nullptr, 0);
        text += std::to_string(*spent) + " ";
    }
    munmap(spent, sizeof(long));
    answer(text);
}

// From now on each system call of this thread kills the process. (Strict mode would take the time
// stamp counter away as well.)
void forbid_system_calls() {
    sock_filter kill[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)};
    const sock_fprog filter = {1, kill};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) fail("seccomp");
}

[[noreturn]] void log_calls(Function function, CallLog& log) {
    forbid_system_calls();
    for (uint64_t i = 0;; ++i) {
        const long begin = now_ns();
        function();
        log.calls[i % kLoggedCalls] = {begin, now_ns()};
        __atomic_store_n(&log.count, i + 1, __ATOMIC_RELEASE);
    }
}

void begin_log(Function function, const std::string& path) {
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    void* const memory =
        mmap(nullptr, sizeof(CallLog), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    if (memory == MAP_FAILED) fail("map " + path);
    std::thread([=] { log_calls(function, *static_cast<CallLog*>(memory)); }).detach();
    answer("begun");
}

void obey(const std::string& line) {
    std::istringstream words(line);
    std::string command, name, path;
    long count = 0, pause_us = 0, threads = 0, limit_ms = 0, spin_ns = 0;
    words >> command;
    if (command == "call" && words >> name >> count) {
        answer(std::to_string(time_calls(find(name), count)));
    } else if (command == "each" && words >> name >> count >> pause_us) {
        const Function function = find(name);
        std::string text;
        for (long i = 0; i < count; ++i) {
            text += std::to_string(time_calls(function, 1)) + " ";
            usleep(static_cast<useconds_t>(pause_us));
        }
        answer(text);
    } else if (command == "cost" && words >> name >> count >> spin_ns) {
        const Function function = find(name);
        std::string times, cpu_times;
        for (long i = 0; i < count; ++i) {
            for (const long begun = now_ns(); now_ns() - begun < spin_ns;) continue;
            const long before = cpu_now_ns();
            times += std::to_string(time_calls(function, 1)) + " ";
            cpu_times += std::to_string(cpu_now_ns() - before) + " ";
        }
        answer(times + cpu_times);
    } else if (command == "first" && words >> name >> count >> limit_ms) {
        const Function function = find(name);
        const long start = now_ns();
        for (long begin = start; begin < start + limit_ms * 1'000'000; begin = now_ns()) {
            if (time_calls(function, 1) >= count) return answer(std::to_string(begin - start));
            usleep(200);
        }
        answer("never");
    } else if (command == "repeat" && words >> name) {
        std::thread([function = find(name)] {
            for (;;) function();
        }).detach();
        answer("repeats");
    } else if (command == "log" && words >> name >> path) {
        begin_log(find(name), path);
    } else if (command == "threads" && words >> threads >> name >> count) {
        const Function function = find(name);
        std::vector<std::thread> running;
        const long start = now_ns();
        for (long i = 0; i < threads; ++i)
            running.emplace_back([=] { (void)time_calls(function, count); });
        for (std::thread& thread : running) thread.join();
        answer(std::to_string(now_ns() - start));
    } else if (command == "load" && words >> path) {
        if (!dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL)) {
            answer(std::string("error: ") + dlerror());
            return;
        }
        answer("loaded");
    } else if (command == "child" && words >> path) {
        if (fork_child(path)) answer("ready " + std::to_string(getpid()));
    } else if ((command == "orphan" || command == "newpid") && words >> path) {
        if (fork_grandchild(path, command == "newpid")) answer("ready " + std::to_string(getpid()));
    } else if (command == "births" && words >> count >> name) {
        births(count, find(name));
    } else if (command == "exec" && words >> path) {
        execl(path.c_str(), path.c_str(), static_cast<char*>(nullptr));
        fail("exec " + path);
    } else if (command == "pid") {
        answer(std::to_string(getpid()));
    } else if (command == "exit" && words >> count) {
        _exit(static_cast<int>(count));
    } else if (command == "signal" && words >> count) {
        raise(static_cast<int>(count));
        answer("survived");
    } else {
        answer("error: what is '" + line + "'?");
    }
}

} // namespace

// Arguments are commands that come before those of standard input.
int main(int argc, char** argv) {
    signal(SIGPIPE, SIG_DFL);
    if (argc == 1) answer("ready " + std::to_string(getpid()));
    for (int i = 1; i < argc; ++i) obey(argv[i]);
    for (std::string line; read_line(line);) obey(line);
    return 0;
}
