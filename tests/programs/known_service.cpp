// SPDX-License-Identifier: MIT
// Services whose answer is known: what a delay of each function costs per unit of progress.
//
//   known_service KIND [NAME=US]...
//
// unit_done() is called once per unit; what a work_NAME() takes can be set (long=900). Prints
// "ready" first, for each line of its input the number of units so far, and ends with its input.
//
//   serial    a (200), b (200) one after the other: k = 1 for both
//   slack     a unit waits for two threads, long (900) and short (500): long has k = 1, short is
//             hidden by what it takes less, then k = 1
//   apart     on (300) in the thread that counts: k = 1; off (300) in one that nobody waits for: 0
//   pipeline  first (300) and second (600) in two threads with a queue between them: second is the
//             bottleneck, k = 1; first is hidden by what it takes less, then k = 1
//   convoy    locked (300) holds a lock now and then; who finds it taken waits four times as long
//             as the holder: k is about 4 per injected ns
//   paths     both (100) is called twice a unit, from two places: k = 1 per injected ns
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace {

std::map<std::string, long> g_times;

long time_of(const char* name, long otherwise) {
    const auto found = g_times.find(name);
    return found == g_times.end() ? otherwise : found->second;
}

uint64_t now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_nsec);
}

// Spins where one thread does it all, so that no timer's slack blurs the answer; several threads
// sleep, so that they need no CPU of their own.
bool g_spins = false;

std::atomic<uint64_t> g_units{0};

void pass_us(long us) {
    const uint64_t end = now_ns() + static_cast<uint64_t>(us) * 1000;
    if (g_spins) {
        while (now_ns() < end) {
        }
        return;
    }
    const timespec until = {static_cast<time_t>(end / 1000000000u),
                            static_cast<long>(end % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) != 0) {
    }
}

// Hands numbers from one thread to another, a few ahead.
class Queue {
  public:
    void put() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return waiting_ < 4; });
        ++waiting_;
        changed_.notify_all();
    }
    void take() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return waiting_ > 0; });
        --waiting_;
        changed_.notify_all();
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    int waiting_ = 0;
};

} // namespace

extern "C" {
[[gnu::noinline, gnu::used]] void unit_done() {
    g_units.store(g_units.load() + 1); // one thread; the kernel probes no locked instruction
}
#define WORK(name, us)                                \
    [[gnu::noinline, gnu::used]] void work_##name() { \
        static const long time = time_of(#name, us);  \
        pass_us(time);                                \
    }
WORK(a, 200)
WORK(b, 200)
WORK(long, 900)
WORK(short, 500)
WORK(on, 300)
WORK(off, 300)
WORK(first, 300)
WORK(second, 600)
WORK(locked, 300)
WORK(both, 100)
}

namespace {

[[noreturn]] void serial() {
    g_spins = true;
    for (;;) {
        work_a();
        work_b();
        unit_done();
    }
}

[[noreturn]] void slack() {
    Queue begin, end;
    std::thread([&] {
        for (;;) {
            begin.take();
            work_short();
            end.put();
        }
    }).detach();
    for (;;) {
        begin.put();
        work_long();
        end.take();
        unit_done();
    }
}

[[noreturn]] void apart() {
    std::thread([] {
        for (;;) work_off();
    }).detach();
    for (;;) {
        work_on();
        unit_done();
    }
}

[[noreturn]] void pipeline() {
    Queue queue;
    std::thread([&] {
        for (;;) {
            work_first();
            queue.put();
        }
    }).detach();
    for (;;) {
        queue.take();
        work_second();
        unit_done();
    }
}

[[noreturn]] void convoy() {
    std::mutex lock;
    std::atomic<uint64_t> taken_at{0};
    std::thread([&] {
        for (;;) {
            {
                const std::lock_guard held(lock);
                taken_at = now_ns();
                work_locked();
                taken_at = 0;
            }
            pass_us(3000);
        }
    }).detach();
    for (;;) {
        if (!lock.try_lock()) {
            const uint64_t begin = now_ns();
            lock.lock();
            lock.unlock();
            pass_us(static_cast<long>(3 * (now_ns() - begin) / 1000)); // backs off
            continue;
        }
        lock.unlock();
        pass_us(100);
        unit_done();
    }
}

[[noreturn]] void paths() {
    g_spins = true;
    for (;;) {
        work_both();
        pass_us(100);
        work_both();
        unit_done();
    }
}

} // namespace

int main(int argc, char** argv) {
    const std::map<std::string, void (*)()> kinds = {{"serial", serial},     {"slack", slack},
                                                     {"apart", apart},       {"convoy", convoy},
                                                     {"pipeline", pipeline}, {"paths", paths}};
    const auto kind = argc > 1 ? kinds.find(argv[1]) : kinds.end();
    if (kind == kinds.end()) {
        std::fprintf(stderr, "usage: known_service KIND [NAME=US]...\n");
        return 2;
    }
    for (int i = 2; i < argc; ++i)
        if (const char* equals = std::strchr(argv[i], '='))
            g_times[std::string(argv[i], static_cast<size_t>(equals - argv[i]))] =
                std::atol(equals + 1);
    std::thread([] {
        char byte;
        while (read(STDIN_FILENO, &byte, 1) > 0) {
            std::printf("%llu\n", static_cast<unsigned long long>(g_units.load()));
            std::fflush(stdout);
        }
        _exit(0);
    }).detach();
    std::puts("ready");
    std::fflush(stdout);
    kind->second();
}
