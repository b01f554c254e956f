// SPDX-License-Identifier: MIT
// The process that the benchmark slows down. Reads one command a line, answers one line each:
//   calls NAME COUNT   nanoseconds a call
//   spread COUNT       nanoseconds a call of 2,000 functions (many_0 to many_1999) in random order
//   spins NS COUNT     nanoseconds a loop that looks at the clock until so many have passed
//   forks COUNT        nanoseconds a fork + exit + wait
//   getppids COUNT     nanoseconds a system call
//   born               nanoseconds from before a fork until bench_push is slow in the child
//   begun              the same from before an exec in the child, which runs this program anew
//   family COUNT       makes children that wait until this one ends; 1
//   load LIBRARY       1: it is mapped now
//   gap MILLISECONDS   starts a thread that notes the longest time it was held up
//   longest            ends that thread; nanoseconds
// What libraries print when they are loaded goes to its standard error.
#include <dlfcn.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

extern "C" {
void bench_nop5();
void bench_push();
void bench_endbr64();
void bench_mov();
void bench_leaf();
void many_0();
void many_5000();
extern void (*const many_by_address[2000])();
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

double spread(long count) {
    std::vector<uint16_t> order(std::size(many_by_address));
    std::iota(order.begin(), order.end(), uint16_t{0});
    std::shuffle(order.begin(), order.end(), std::mt19937(1));
    const int64_t begin = now_ns();
    for (long i = 0; i < count; ++i)
        many_by_address[order[static_cast<size_t>(i) % order.size()]]();
    return static_cast<double>(now_ns() - begin) / static_cast<double>(count);
}

double spins(long ns, long count) {
    const int64_t begin = now_ns();
    for (long i = 0; i < count; ++i) {
        const int64_t end = now_ns() + ns;
        while (now_ns() < end) {
        }
    }
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

[[noreturn]] void wait_for_parent() {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
}

double getppids(long count) {
    const int64_t begin = now_ns();
    for (long i = 0; i < count; ++i) getppid();
    return static_cast<double>(now_ns() - begin) / static_cast<double>(count);
}

int64_t cpu_ns() {
    timespec used{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return used.tv_sec * 1'000'000'000LL + used.tv_nsec;
}

// Nanoseconds from `begin` until a call is slow, by its CPU time: others may have the CPU.
double until_slow(int64_t begin) {
    constexpr int64_t kSlow = 500'000, kPatience = 2'000'000'000;
    for (;;) {
        const int64_t before = now_ns();
        const int64_t used = cpu_ns();
        bench_push();
        if (cpu_ns() - used > kSlow) return static_cast<double>(before - begin);
        if (before - begin > kPatience) return -1;
    }
}

double born(bool execs) {
    std::fflush(stdout);
    int ends[2];
    if (pipe(ends) != 0) return -1;
    const int64_t begin = now_ns();
    const pid_t child = fork();
    if (child == 0) {
        const std::string start = std::to_string(now_ns()), to = std::to_string(ends[1]);
        if (execs) execl("/proc/self/exe", "bench_target", start.c_str(), to.c_str(), nullptr);
        const double took = until_slow(begin);
        _exit(write(ends[1], &took, sizeof(took)) == sizeof(took) ? 0 : 1);
    }
    double took = -1;
    if (read(ends[0], &took, sizeof(took)) != sizeof(took)) took = -1;
    waitpid(child, nullptr, 0);
    close(ends[0]);
    close(ends[1]);
    return took;
}

} // namespace

int main(int argc, char** argv) {
    if (argc == 3) { // begun
        const double took = until_slow(std::atoll(argv[1]));
        return write(std::atoi(argv[2]), &took, sizeof(took)) == sizeof(took) ? 0 : 1;
    }
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
        long ns = 0, count = 0;
        if (std::sscanf(line, "calls %511s %ld", name, &count) == 2) {
            std::fprintf(answers, "%.2f\n", calls(functions.at(name), count));
        } else if (std::sscanf(line, "spread %ld", &count) == 1) {
            std::fprintf(answers, "%.2f\n", spread(count));
        } else if (std::sscanf(line, "spins %ld %ld", &ns, &count) == 2) {
            std::fprintf(answers, "%.2f\n", spins(ns, count));
        } else if (std::sscanf(line, "forks %ld", &count) == 1) {
            std::fprintf(answers, "%.2f\n", forks(count));
        } else if (std::sscanf(line, "getppids %ld", &count) == 1) {
            std::fprintf(answers, "%.2f\n", getppids(count));
        } else if (std::strncmp(line, "born", 4) == 0 || std::strncmp(line, "begun", 5) == 0) {
            std::fprintf(answers, "%.0f\n", born(line[1] == 'e'));
        } else if (std::sscanf(line, "family %ld", &count) == 1) {
            for (long i = 0; i < count; ++i)
                if (fork() == 0) wait_for_parent();
            std::fprintf(answers, "1\n");
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
