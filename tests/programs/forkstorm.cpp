// SPDX-License-Identifier: MIT
// Forks all the time: CHAINS lines of descent, each process bearing its successor within 2 ms and
// ending, and some children that stay, up to LEAVES. On a line of standard input everybody alive
// stops forking, and on the next one times calls of work_push. Answers "ALIVE FAST FORKS": how
// many processes there were, how many of them had a call of less than THRESHOLD_US, and how many
// forks had been made. Orphans become children of the first process, so that everybody descends
// from it at every moment.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>

#include "work.h"

namespace {

struct Shared {
    std::atomic<int> lines{0}; // that were heard
    std::atomic<int> leaves{0};
    std::atomic<int> reported{0};
    std::atomic<int> fast{0};
    std::atomic<int> failed{0};
    std::atomic<long> forks{0};
};

Shared* shared;
long threshold_us;
int leaf_limit;
pid_t first; // without it, or after some time, the storm is over
const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);

long fastest_call_us() {
    long best = 1'000'000'000;
    for (int i = 0; i < 3; ++i) {
        const auto start = std::chrono::steady_clock::now();
        work_push();
        const auto spent = std::chrono::steady_clock::now() - start;
        best = std::min<long>(best,
                              std::chrono::duration_cast<std::chrono::microseconds>(spent).count());
    }
    return best;
}

[[noreturn]] void measure() {
    while (shared->lines < 2) {
        if (kill(first, 0) != 0) _exit(1);
        usleep(1000);
    }
    if (fastest_call_us() < threshold_us) ++shared->fast;
    ++shared->reported;
    _exit(0);
}

bool become_child() {
    ++shared->forks;
    const pid_t pid = fork();
    if (pid < 0) ++shared->failed;
    return pid == 0;
}

[[noreturn]] void chain(unsigned seed) {
    for (;;) {
        seed = seed * 1103515245u + 12345u;
        usleep(seed >> 16 & 2047);
        if (shared->lines > 0) measure();
        if (kill(first, 0) != 0 || std::chrono::steady_clock::now() > give_up) _exit(1);
        if (seed >> 28 == 0 && shared->leaves.fetch_add(1) < leaf_limit && become_child())
            measure();
        if (!become_child()) _exit(0);
    }
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 4) return 2;
    const int chains = std::atoi(argv[1]);
    leaf_limit = std::atoi(argv[2]);
    threshold_us = std::atol(argv[3]);
    void* memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    shared = new (memory) Shared;
    first = getpid();
    signal(SIGCHLD, SIG_IGN);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return 1;
    for (int i = 0; i < chains; ++i)
        if (become_child()) chain(static_cast<unsigned>(i) * 2654435761u);
    std::puts("ready");
    std::fflush(stdout);
    for (; shared->lines < 2; ++shared->lines) {
        while (std::getchar() != '\n') {
            if (std::feof(stdin)) break;
        }
    }
    const auto everybody = [&] { return chains + std::min<int>(shared->leaves, leaf_limit); };
    while (shared->reported < everybody() && std::chrono::steady_clock::now() < give_up)
        usleep(10'000);
    std::printf("%d %d %ld\n", shared->reported.load(), shared->fast.load(), shared->forks.load());
    return shared->reported == everybody() && shared->failed == 0 ? 0 : 1;
}
