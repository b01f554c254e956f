// SPDX-License-Identifier: MIT
// The process that the benchmark slows down. Reads one command a line, answers one line each:
//   calls NAME COUNT   nanoseconds a call
//   forks COUNT        nanoseconds a fork + exit + wait
//   load LIBRARY       1: it is mapped now
//   gap MILLISECONDS   starts a thread that notes the longest time it was held up
//   longest            ends that thread; nanoseconds
// What libraries print when they are loaded goes to its standard error.
#include <dlfcn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <thread>

extern "C" {
void bench_nop5();
void bench_push();
void bench_endbr64();
void bench_mov();
void bench_leaf();
void many_0();
void many_5000();
}

namespace {

int64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

double calls(void (*function)(), long count) {
    const int64_t begin = now_ns();
    for (long i = 0; i < count; ++i) function();
    return static_cast<double>(now_ns() - begin) / static_cast<double>(count);
}

double forks(long count) {
    const int64_t begin = now_ns();
    for (long i = 0; i < count; ++i) {
        const pid_t child = fork();
        if (child == 0) _exit(0);
        waitpid(child, nullptr, 0);
    }
    return static_cast<double>(now_ns() - begin) / static_cast<double>(count);
}

} // namespace

int main() {
    const std::map<std::string, void (*)()> functions{
        {"nop5", bench_nop5}, {"push", bench_push}, {"endbr64", bench_endbr64},
        {"mov", bench_mov},   {"leaf", bench_leaf}, {"many", many_5000},
    };
    std::atomic<bool> watching{false};
    std::atomic<int64_t> longest{0};
    std::thread watcher;
    FILE* const answers = fdopen(dup(STDOUT_FILENO), "w");
    dup2(STDERR_FILENO, STDOUT_FILENO);
    char line[1024];
    while (std::fgets(line, sizeof(line), stdin)) {
        char name[512];
        long count = 0;
        if (std::sscanf(line, "calls %511s %ld", name, &count) == 2) {
            std::fprintf(answers, "%.2f\n", calls(functions.at(name), count));
        } else if (std::sscanf(line, "forks %ld", &count) == 1) {
            std::fprintf(answers, "%.2f\n", forks(count));
        } else if (std::sscanf(line, "load %511s", name) == 1) {
            std::fprintf(answers, "%d\n", dlopen(name, RTLD_NOW) != nullptr ? 1 : 0);
        } else if (std::strncmp(line, "gap", 3) == 0) {
            watching = true;
            longest = 0;
            watcher = std::thread([&] {
                // Page faults and calls, so that a held mm or a patched page is felt.
                int64_t before = now_ns();
                while (watching) {
                    many_0();
                    const int64_t now = now_ns();
                    longest = std::max<int64_t>(longest, now - before);
                    before = now;
                }
            });
            std::fprintf(answers, "0\n");
        } else if (std::strncmp(line, "longest", 7) == 0) {
            watching = false;
            if (watcher.joinable()) watcher.join();
            std::fprintf(answers, "%ld\n", static_cast<long>(longest.load()));
        } else {
            std::fprintf(answers, "-1\n");
        }
        std::fflush(answers);
    }
    if (watcher.joinable()) {
        watching = false;
        watcher.join();
    }
    return 0;
}
