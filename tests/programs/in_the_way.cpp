// SPDX-License-Identifier: MIT
// A thread that works without pause, beside one that waits for ever in a call that a stop would
// disturb. "ready", and at SIGTERM for how long the first had no CPU though it wanted none else:
// "STOPPED_MS".
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>

namespace {

volatile sig_atomic_t over = 0;
volatile long steps = 0;

int64_t read_clock(clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// How long the calling thread has waited for a CPU (/proc/thread-self/schedstat), in ns.
int64_t waited() {
    int64_t ran = 0, waited = 0;
    std::ifstream("/proc/thread-self/schedstat") >> ran >> waited;
    return waited;
}

int64_t time_without_reason() {
    return read_clock(CLOCK_MONOTONIC) - read_clock(CLOCK_THREAD_CPUTIME_ID) - waited();
}

// Two descriptions of one file: a lock of the one keeps the other out.
void wait_for_ever() {
    const int file = memfd_create("lock", 0);
    const int again = open(("/proc/self/fd/" + std::to_string(file)).c_str(), O_RDWR);
    struct flock lock {};
    lock.l_type = F_WRLCK;
    fcntl(file, F_OFD_SETLK, &lock);
    fcntl(again, F_OFD_SETLKW, &lock);
}

} // namespace

// What is slowed.
extern "C" [[gnu::noinline]] void step() {
    steps = steps + 1;
}

int main() {
    struct sigaction end {};
    end.sa_handler = [](int) { over = 1; };
    sigaction(SIGTERM, &end, nullptr);
    sigset_t set;
    sigfillset(&set);
    sigprocmask(SIG_BLOCK, &set, nullptr); // of the other thread
    std::thread(wait_for_ever).detach();
    sigemptyset(&set);
    sigprocmask(SIG_SETMASK, &set, nullptr);
    const int64_t before = time_without_reason();
    std::printf("ready\n");
    std::fflush(stdout);
    while (over == 0) step();
    std::printf("%ld\n", static_cast<long>((time_without_reason() - before) / 1'000'000));
    std::fflush(stdout);
    _exit(0);
}
