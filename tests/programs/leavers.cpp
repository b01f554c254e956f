// SPDX-License-Identifier: MIT
// Functions that are left in every way that compilers know, and how often each has returned.
//
// Reads lines "NAME CALLS US THREADS" and answers each with "RETURNS NS": how often the function
// returned to its caller, and what a call took on average as its callers saw it. A child does it
// for "fork:NAME". For "semaphore" it answers with that of the mark "watched".
#include <setjmp.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "mark.h"

namespace {

uint64_t now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_nsec);
}

thread_local jmp_buf t_back;
thread_local long t_returns = 0;
volatile long g_sink = 0;

} // namespace

SEMAPHORE(leavers_watched);

#define FUNCTION extern "C" [[gnu::noinline]] long
#define KEEP(value) asm volatile("" : "+r"(value))

FUNCTION spin(long us) {
    const uint64_t end = now_ns() + static_cast<uint64_t>(us) * 1000;
    while (now_ns() < end) {
    }
    return us;
}
FUNCTION throws_at(long n) {
    if (n % 3 == 0) throw std::runtime_error("third");
    return n;
}
FUNCTION jumps_at(long n) {
    if (n % 3 == 0) longjmp(t_back, 1);
    return n;
}
// A function that other functions end with; never inlined, and not of their own code.
FUNCTION sibling(long n, long us) {
    spin(us);
    return n + 1;
}
extern "C" [[gnu::noinline, gnu::cold]] void complain(long n) {
    g_sink = g_sink + n;
}

FUNCTION plain(long n, long us) {
    MARK("nop", "leavers", "plain");
    spin(us);
    return n + g_sink;
}
FUNCTION watched(long n, long us) {
    MARK_WITH_SEMAPHORE("nop", "leavers", "watched", "leavers_watched");
    spin(us);
    return n + g_sink;
}
FUNCTION thrown_through(long n, long us) {
    spin(us);
    return throws_at(n) + g_sink;
}
FUNCTION jumped_over(long n, long us) {
    spin(us);
    return jumps_at(n) + g_sink;
}
FUNCTION catches(long n, long us) {
    spin(us);
    try {
        return throws_at(n) + g_sink;
    } catch (const std::exception& error) {
        return static_cast<long>(std::strlen(error.what()));
    }
}
FUNCTION tail(long n, long us) {
    spin(us);
    return sibling(n + 1, us);
}
FUNCTION maybe_tail(long n, long us) {
    if (n % 3 != 0) return sibling(n, us);
    return n + g_sink;
}
extern "C" {
long (*volatile g_sibling)(long, long) = sibling;
}
FUNCTION pointer_tail(long n, long us) {
    spin(us);
    return g_sibling(n, us);
}
FUNCTION recursive(long n, long us) {
    if (n < 2) return n + spin(us);
    const long sum = recursive(n - 1, us) + recursive(n - 2, us);
    return sum + g_sink;
}
FUNCTION with_cold_part(long n, long us) {
    long sum = 0;
    for (long i = 0; i < 4; ++i) {
        sum += i * n;
        KEEP(sum);
        if (__builtin_expect(n % 5 == i, 0)) {
            complain(n);
            complain(sum);
            if (i == 3) return sum - 7;
        }
    }
    spin(us);
    return sum;
}
FUNCTION with_table(long n, long us) {
    long value = n;
    switch (n % 12) {
        case 0:
            value = spin(us) * 3;
            break;
        case 1:
            return g_sink + 11;
        case 2:
            value ^= 0x55;
            KEEP(value);
            break;
        case 3:
            return sibling(n, us);
        case 4:
            value = value * 7 + g_sink;
            break;
        case 5:
            value -= g_sink;
            KEEP(value);
            return value * 5;
        case 6:
            complain(n);
            break;
        case 7:
            return g_sibling(n, us);
        case 8:
            value <<= 3;
            KEEP(value);
            break;
        case 9:
            value = sibling(value, 0) + 1;
            break;
        case 10:
            g_sink = g_sink + 1;
            return 4;
        default:
            value += 2;
            KEEP(value);
            break;
    }
    return value + 1;
}

namespace {

using Function = long (*)(long, long);
struct Named {
    const char* name;
    Function function;
};
constexpr Named kFunctions[] = {
    {"plain", plain},
    {"watched", watched},
    {"thrown_through", thrown_through},
    {"jumped_over", jumped_over},
    {"catches", catches},
    {"tail", tail},
    {"maybe_tail", maybe_tail},
    {"pointer_tail", pointer_tail},
    {"recursive", recursive},
    {"with_cold_part", with_cold_part},
    {"with_table", with_table},
};

// From stacks of different depths, so that what one call leaves behind meets others.
[[gnu::noinline]] void call(Function function, long n, long us, unsigned depth) {
    if (depth > 0) {
        volatile char frame[40];
        frame[0] = 1;
        call(function, n, us, depth - 1);
        frame[1] = frame[0];
        return;
    }
    try {
        if (setjmp(t_back) == 0) {
            g_sink = g_sink + (function(n, us) & 0);
            ++t_returns;
        }
    } catch (const std::runtime_error&) {
    }
}

long calls_of_recursion(long n) {
    return n < 2 ? 1 : 1 + calls_of_recursion(n - 1) + calls_of_recursion(n - 2);
}

} // namespace

int main() {
    char name[64];
    long calls, us, threads;
    std::puts("ready");
    std::fflush(stdout);
    while (std::scanf("%63s %ld %ld %ld", name, &calls, &us, &threads) == 4) {
        if (std::strcmp(name, "semaphore") == 0) {
            std::printf("%u 0\n", leavers_watched);
            std::fflush(stdout);
            continue;
        }
        const bool in_child = std::strncmp(name, "fork:", 5) == 0;
        Function function = nullptr;
        for (const Named& one : kFunctions)
            if (std::strcmp(one.name, name + (in_child ? 5 : 0)) == 0) function = one.function;
        if (!function) return 2;
        if (in_child && fork() != 0) {
            wait(nullptr);
            continue;
        }
        const bool recurses = function == recursive;
        std::atomic<long> returns{0}, total_ns{0};
        std::vector<std::thread> all;
        for (long thread = 0; thread < threads; ++thread)
            all.emplace_back([&, thread] {
                t_returns = 0;
                const uint64_t begin = now_ns();
                for (long i = 0; i < calls; ++i)
                    call(function, recurses ? 6 : i + thread, us, static_cast<unsigned>(i % 7));
                total_ns += static_cast<long>(now_ns() - begin);
                returns += t_returns * (recurses ? calls_of_recursion(6) : 1);
            });
        for (std::thread& one : all) one.join();
        std::printf("%ld %ld\n", returns.load(), total_ns.load() / (calls * threads));
        std::fflush(stdout);
        if (in_child) _exit(0);
    }
}
