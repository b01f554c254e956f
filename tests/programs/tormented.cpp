// SPDX-License-Identifier: MIT
// Works in a way that makes patching hard, checks each result of its own functions, and does what
// standard input says, a command a line:
//
//   call N      calls of hot_mix: "done", or "wrong"
//   begin MODE  works in threads from now on: "begun"
//   check       "right COUNT" as long as every result was, and so many were made in all
//   fork        a child that takes the commands from here until it ends: "PID"
//   end         of a child: "ended"
//   rename NAME  the thread that hears gets another name: "done"
//   timens      children that are forked from now on are in another time namespace: "done"
//   handlers    how many signal handlers have run: "COUNT"
//   from NAME N  calls of hot_mix that caller_one, caller_two or lib_calls makes: "done"
//   named NAME N  calls of hot_mix on a thread that gives itself that name: "done"
//
// Modes: loop, threads, crowd, alarm, altstack, nested, throw, longjmp, context, fork, vfork,
// spawn, library, sleep.
#include <dlfcn.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "apart.h"

#define HOT extern "C" [[APART, gnu::noclone]]

namespace {

std::atomic<uint64_t> made{0};
std::atomic<uint64_t> wrong{0};
std::atomic<uint64_t> handled{0};
thread_local sigjmp_buf way_back;
uint64_t factors[4] = {3, 5, 7, 11};

void expect(bool is_right) {
    made.fetch_add(1, std::memory_order_relaxed);
    if (!is_right) wrong.fetch_add(1, std::memory_order_relaxed);
}

} // namespace

// Registers, flags, the red zone and data at addresses of their own: what a jump could spoil.
HOT uint64_t hot_mix(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    uint64_t x = a * factors[0] + b;
    x ^= (c << 7) | (c >> 57);
    x += d * factors[1];
    return x ^ (x >> 13);
}

HOT uint64_t hot_leaf(const uint64_t* words, uint64_t count) {
    uint64_t local[8];
    for (int i = 0; i < 8; ++i) local[i] = words[i] + count;
    asm volatile("" : : "r"(local) : "memory");
    uint64_t sum = 0;
    for (int i = 0; i < 8; ++i) sum = sum * 31 + local[i];
    return sum;
}

HOT uint64_t hot_recurse(uint64_t depth) {
    asm volatile("" : "+r"(depth));
    return depth == 0 ? 1 : depth + hot_recurse(depth - 1);
}

HOT void hot_throw(int value) {
    asm volatile("" : "+r"(value));
    if (value != 0) throw std::runtime_error(std::to_string(value));
}

HOT void hot_jump(sigjmp_buf* to, int value) {
    asm volatile("" : "+r"(value));
    if (value != 0) siglongjmp(*to, value);
}

// Its only instruction is a jump of five bytes, which has others go on at hot_mix.
HOT uint64_t hot_thunk(uint64_t a, uint64_t b, uint64_t c, uint64_t d);
asm(R"(
    .pushsection .text
    .p2align 9
    .globl hot_thunk
    .type hot_thunk, @function
hot_thunk:
    .byte 0xe9
    .long hot_mix - . - 4
    .size hot_thunk, . - hot_thunk
    .popsection
)");

// A jump into it takes the place of its return, and of padding behind that.
HOT uint64_t hot_short(uint64_t a);
asm(R"(
    .pushsection .text
    .p2align 9
    .globl hot_short
    .type hot_short, @function
hot_short:
    lea 1(%rdi), %rax
    ret
    .size hot_short, . - hot_short
    .p2align 4
    .popsection
)");

HOT double hot_float(double a, double b) {
    asm volatile("" : "+x"(a), "+x"(b));
    return a * 1.5 + b;
}

// What calls hot_mix and goes on behind it.
HOT uint64_t caller_one(uint64_t turn) {
    const uint64_t made_of = hot_mix(turn, 1, 2, 3);
    asm volatile("" : : "r"(made_of) : "memory");
    return made_of;
}

HOT uint64_t caller_two(uint64_t turn) {
    const uint64_t made_of = hot_mix(turn, 1, 2, 3);
    asm volatile("" : : "r"(made_of) : "memory");
    return made_of;
}

namespace {

uint64_t plain_mix(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    uint64_t x = a * 3 + b;
    x ^= (c << 7) | (c >> 57);
    x += d * 5;
    return x ^ (x >> 13);
}

uint64_t plain_leaf(const uint64_t* words, uint64_t count) {
    uint64_t sum = 0;
    for (int i = 0; i < 8; ++i) sum = sum * 31 + words[i] + count;
    return sum;
}

void work(uint64_t turn) {
    const uint64_t words[8] = {turn, 1, 2, turn * 3, 4, 5, turn ^ 6, 7};
    expect(hot_mix(turn, 2, turn + 3, 4) == plain_mix(turn, 2, turn + 3, 4));
    expect(hot_thunk(turn, 5, turn + 1, 6) == plain_mix(turn, 5, turn + 1, 6));
    expect(hot_leaf(words, turn) == plain_leaf(words, turn));
    expect(hot_short(turn) == turn + 1);
    const uint64_t depth = turn % 8;
    expect(hot_recurse(depth) == 1 + depth * (depth + 1) / 2);
    const auto value = static_cast<double>(turn % 1000);
    expect(hot_float(value, 2.25) == value * 1.5 + 2.25);
}

void try_throwing(uint64_t turn) {
    const int value = static_cast<int>(turn % 7);
    try {
        hot_throw(value);
        expect(value == 0);
    } catch (const std::runtime_error& error) {
        expect(error.what() == std::to_string(value) && value != 0);
    }
}

void try_jumping(uint64_t turn) {
    const int value = static_cast<int>(turn % 7);
    const int got = sigsetjmp(way_back, 0);
    if (got == 0) hot_jump(&way_back, value);
    expect(got == 0 ? value == 0 : got == value);
}

void on_alarm(int) {
    const int before = errno;
    const uint64_t turn = handled.fetch_add(1, std::memory_order_relaxed);
    work(turn);
    errno = before;
}

// `flags`: SA_ONSTACK, or SA_NODEFER for handlers in handlers.
void start_alarms(int flags) {
    if ((flags & SA_ONSTACK) != 0) {
        stack_t stack{};
        stack.ss_size = 64 * 1024;
        stack.ss_sp = std::malloc(stack.ss_size);
        sigaltstack(&stack, nullptr);
    }
    struct sigaction action {};
    action.sa_handler = on_alarm;
    action.sa_flags = SA_RESTART | flags;
    sigaction(SIGALRM, &action, nullptr);
    itimerval timer{{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &timer, nullptr);
}

void expect_exit(pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    expect(pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

void fork_once(uint64_t turn) {
    const pid_t pid = fork();
    if (pid == 0) {
        const uint64_t before = wrong;
        for (uint64_t i = 0; i < 50; ++i) work(turn + i);
        _exit(wrong == before ? 0 : 1);
    }
    expect_exit(pid);
}

void vfork_once(uint64_t turn) {
    const pid_t pid = vfork();
    if (pid == 0) {
        const bool is_right = hot_mix(turn, 1, 2, 3) == plain_mix(turn, 1, 2, 3);
        _exit(is_right ? 0 : 1);
    }
    expect_exit(pid);
}

void spawn_once(uint64_t) {
    pid_t pid = 0;
    char* arguments[] = {const_cast<char*>("true"), nullptr};
    char* none[] = {nullptr};
    const int error = posix_spawn(&pid, "/bin/true", nullptr, nullptr, arguments, none);
    if (error != 0) return expect(false);
    expect_exit(pid);
}

// Works on a stack that it leaves and comes back to.
thread_local ucontext_t outside, inside;
thread_local uint64_t turn_of_context;

void work_in_context() {
    for (;;) {
        work(turn_of_context);
        swapcontext(&inside, &outside);
    }
}

void switch_context(uint64_t turn) {
    thread_local std::vector<char> stack;
    if (stack.empty()) {
        stack.resize(64 * 1024);
        getcontext(&inside);
        inside.uc_stack.ss_sp = stack.data();
        inside.uc_stack.ss_size = stack.size();
        makecontext(&inside, work_in_context, 0);
    }
    turn_of_context = turn;
    expect(swapcontext(&outside, &inside) == 0);
}

std::string library_path() {
    return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libslowlib.so";
}

void load_and_unload(uint64_t) {
    static const std::string path = library_path();
    void* const library = dlopen(path.c_str(), RTLD_NOW);
    expect(library != nullptr && dlsym(library, "lib_work") != nullptr);
    expect(dlclose(library) == 0);
}

template <typename Turn>
void repeat(Turn turn) {
    for (uint64_t i = 0;; ++i) {
        turn(i);
        work(i);
    }
}

void run_mode(const std::string& mode) {
    if (mode == "throw") repeat(try_throwing);
    if (mode == "longjmp") repeat(try_jumping);
    if (mode == "fork") repeat(fork_once);
    if (mode == "vfork") repeat(vfork_once);
    if (mode == "spawn") repeat(spawn_once);
    if (mode == "sleep")
        repeat([](uint64_t) {
            timespec time{0, 2'000'000};
            expect(nanosleep(&time, nullptr) == 0);
        });
    if (mode == "threads")
        repeat([](uint64_t turn) {
            std::vector<std::thread> threads;
            for (int i = 0; i < 20; ++i)
                threads.emplace_back([turn] {
                    for (uint64_t n = 0; n < 20; ++n) work(turn + n);
                });
            for (std::thread& thread : threads) thread.join();
        });
    if (mode == "context") repeat(switch_context);
    if (mode == "library") repeat(load_and_unload);
    if (mode == "crowd")
        for (unsigned i = 0; i < 8 * std::thread::hardware_concurrency(); ++i)
            std::thread([] { repeat([](uint64_t) {}); }).detach();
    if (mode == "alarm") start_alarms(0);
    if (mode == "altstack") start_alarms(SA_ONSTACK);
    if (mode == "nested") start_alarms(SA_NODEFER);
    repeat([](uint64_t) {});
}

using Caller = uint64_t (*)(uint64_t);

uint64_t call_from_library(uint64_t turn) {
    using Mix = uint64_t (*)(uint64_t, uint64_t, uint64_t, uint64_t);
    static const auto function = reinterpret_cast<uint64_t (*)(Mix, uint64_t)>(
        dlsym(dlopen(library_path().c_str(), RTLD_NOW), "lib_calls"));
    return function(hot_mix, turn);
}

// Whether all were right.
bool call_from(Caller caller, uint64_t count) {
    uint64_t mistakes = 0;
    for (uint64_t i = 0; i < count; ++i) mistakes += caller(i) != plain_mix(i, 1, 2, 3);
    return mistakes == 0;
}

bool call_on_thread(const std::string& name, uint64_t count) {
    bool is_right = false;
    std::thread([&] {
        prctl(PR_SET_NAME, name.c_str());
        is_right = call_from(caller_one, count);
    }).join();
    return is_right;
}

bool answer(const std::string& line) {
    const std::string command = line.substr(0, line.find(' '));
    const std::string rest = line.size() > command.size() ? line.substr(command.size() + 1) : "";
    if (command == "call") {
        uint64_t mistakes = 0;
        for (uint64_t i = 0, count = std::stoull(rest); i < count; ++i)
            mistakes += hot_mix(i, 1, 2, 3) != plain_mix(i, 1, 2, 3);
        std::cout << (mistakes == 0 ? "done" : "wrong") << std::endl;
    } else if (command == "begin") {
        std::thread(run_mode, rest).detach();
        std::cout << "begun" << std::endl;
    } else if (command == "check") {
        std::cout << (wrong == 0 ? "right " : "wrong ") << made << std::endl;
    } else if (command == "handlers") {
        std::cout << handled << std::endl;
    } else if (command == "fork") {
        const pid_t pid = fork();
        if (pid == 0) {
            std::cout << getpid() << std::endl;
            return true;
        }
        expect_exit(pid);
        std::cout << "ended" << std::endl;
    } else if (command == "from" || command == "named") {
        const std::string name = rest.substr(0, rest.find(' '));
        const uint64_t count = std::stoull(rest.substr(name.size()));
        const Caller caller = name == "caller_one"   ? caller_one
                              : name == "caller_two" ? caller_two
                                                     : call_from_library;
        const bool is_right =
            command == "from" ? call_from(caller, count) : call_on_thread(name, count);
        std::cout << (is_right ? "done" : "wrong") << std::endl;
    } else if (command == "rename") {
        prctl(PR_SET_NAME, rest.c_str());
        std::cout << "done" << std::endl;
    } else if (command == "timens") {
        const bool is_elsewhere = unshare(CLONE_NEWTIME) == 0;
        std::ofstream("/proc/self/timens_offsets") << "monotonic 1000 0" << std::endl;
        std::cout << (is_elsewhere ? "done" : "failed") << std::endl;
    } else if (command == "end") {
        _exit(0);
    } else {
        std::cout << "error: " << line << std::endl;
    }
    return true;
}

} // namespace

int main() {
    std::cout << "ready " << getpid() << std::endl;
    for (std::string line; std::getline(std::cin, line);) answer(line);
    return wrong == 0 ? 0 : 1;
}
