// SPDX-License-Identifier: MIT
// A program to slow: calls work() until its input ends, or COUNT times, and prints how many calls
// it made and how many nanoseconds each took.
//   slowee [COUNT [EXIT_STATUS]]
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

extern "C" {
__attribute__((noinline, used)) void work(volatile long* counter) {
    *counter = *counter + 1;
}
__attribute__((noinline, used)) void never_called(volatile long* counter) {
    *counter = *counter - 1;
}
}

namespace widgets {
struct Factory {
    __attribute__((noinline, used)) long make(int a, long b);
};
long Factory::make(int a, long b) {
    volatile long result = a + b;
    return result;
}
} // namespace widgets

int main(int argc, char** argv) {
    const long count = argc > 1 ? std::atol(argv[1]) : 0;
    volatile long calls = 0;
    pollfd input = {0, POLLIN, 0};
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    while (count > 0 ? calls < count : ::poll(&input, 1, 1) == 0) work(&calls);
    const auto time = std::chrono::nanoseconds(Clock::now() - start).count();
    std::printf("%ld calls %ld ns each\n", calls + 0, calls > 0 ? time / calls : 0);
    return argc > 2 ? std::atoi(argv[2]) : 0;
}
