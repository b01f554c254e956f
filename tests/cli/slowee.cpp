// SPDX-License-Identifier: MIT
// A program to slow: calls work() until its input ends, or COUNT times, and prints how many calls
// it made and how many nanoseconds the fastest took.
//   slowee [COUNT [EXIT_STATUS]]
#include <poll.h>
#include <unistd.h>

#include <algorithm>
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
    __attribute__((noinline)) Factory(); // two symbols of one demangled name
    __attribute__((noinline, used)) long make(int a, long b);
};
Factory::Factory() {}
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
    std::chrono::nanoseconds fastest = std::chrono::hours(1);
    while (count > 0 ? calls < count : ::poll(&input, 1, 1) == 0) {
        const Clock::time_point start = Clock::now();
        work(&calls);
        fastest = std::min<std::chrono::nanoseconds>(fastest, Clock::now() - start);
    }
    std::printf("%ld calls, fastest %ld ns\n", calls + 0, static_cast<long>(fastest.count()));
    return argc > 2 ? std::atoi(argv[2]) : 0;
}
