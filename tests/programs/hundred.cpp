// SPDX-License-Identifier: MIT
// A hundred functions, of which four matter:
//
//   hundred SEED    prints "ready A B C D", the numbers of the four
//
// A unit (unit_done) is 0.4 ms of work of the first thread, which calls f_A to f_D once in it. The
// other 96 are called one after the other by a second thread, for which nobody waits and which
// sleeps between its rounds. Each has a CPU of its own, so that a delay takes none from the other.
// Ends when standard input does.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#define FUNCTION extern "C" __attribute__((noinline, noclone, used)) void

namespace {

long rounds_per_us = 0;

__attribute__((noinline)) void work(long us) {
    for (long i = 0; i < us * rounds_per_us; ++i) {
        __asm__ volatile("");
    }
}

std::array<long, 100> time_us; // of each function

void measure_rounds() {
    using Clock = std::chrono::steady_clock;
    rounds_per_us = 100;
    for (int i = 0; i < 5; ++i) {
        const auto begin = Clock::now();
        work(1000);
        const std::chrono::duration<double, std::micro> took = Clock::now() - begin;
        rounds_per_us = std::max(
            1L, static_cast<long>(1000.0 * static_cast<double>(rounds_per_us) / took.count()));
    }
}

void pin(int number) {
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &allowed) && number-- == 0) CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
}

} // namespace

#define TEN(n) F(n##0) F(n##1) F(n##2) F(n##3) F(n##4) F(n##5) F(n##6) F(n##7) F(n##8) F(n##9)
#define ALL TEN(0) TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9)

#define F(n)                       \
    FUNCTION f_##n() {             \
        work(time_us[1##n - 100]); \
    }
ALL
#undef F

#define F(n) f_##n,
    void (*const functions[])() = {ALL};
#undef F

FUNCTION unit_done() {
    __asm__ volatile("");
}

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    std::array<int, 100> order;
    for (int i = 0; i < 100; ++i) order[i] = i;
    std::mt19937 random(static_cast<unsigned>(std::atol(argv[1])));
    std::shuffle(order.begin(), order.end(), random);
    time_us.fill(3);
    for (int i = 0; i < 4; ++i) time_us[order[i]] = 40;
    measure_rounds();
    std::thread([&] {
        pin(1);
        for (;;) {
            for (int i = 4; i < 100; ++i) functions[order[i]]();
            usleep(300);
        }
    }).detach();
    std::thread([&] {
        pin(0);
        for (;;) {
            for (int i = 0; i < 4; ++i) {
                functions[order[i]]();
                work(60);
            }
            unit_done();
        }
    }).detach();
    std::printf("ready %d %d %d %d\n", order[0], order[1], order[2], order[3]);
    std::fflush(stdout);
    while (std::getchar() != EOF) {
    }
    std::_Exit(0);
}
