// SPDX-License-Identifier: MIT
// Services whose answer is known: what a delay of each function costs per unit of progress.
//
//   known_service KIND [NAME=US]...
//
// unit_done() is called once per unit; what a work_NAME() takes can be set (long=900). Prints
// "ready" first, for each line of its input the number of units so far, for an "s" in it the
// semaphore of the mark "watched", and ends with its input.
//
//   serial    a (200), b (200) one after the other: k = 1 for both
//   slack     a unit waits for two threads, long (900) and short (500): long has k = 1, short is
//             hidden by what it takes less, then k = 1
//   apart     on (300) in the thread that counts: k = 1; off (300) in one that nobody waits for: 0
//   pipeline  first (300) and second (600) in two threads with a queue between them: second is the
//             bottleneck, k = 1; first is hidden by what it takes less, then k = 1
//   convoy    locked (300) holds a lock now and then; who finds it taken waits four times as long
//             as the holder, and has less time left for its units: k is 5.3 per injected ns
//   counted   a loop of so many (loops=50000) steps a unit: costs CPU time, however long that takes
//   steps     step (500) is called 40 times a unit: k = 1 per injected ns, of few units a second
//   paths     both (100) is called twice a unit, from two places: k = 1 per injected ns
//   leaf      leaf (3) is called 40 times a unit, then a (200): k = 1 for both
//   late      a (200) is called once a unit, which is done so long (after=150000) later: k = 1
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>

#include "apart.h"
#include "mark.h"

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

std::atomic<uint64_t> g_units{0};

// Threads spin and never sleep: what a wake-up takes is no part of a known answer.
void pass_us(long us) {
    const uint64_t end = now_ns() + static_cast<uint64_t>(us) * 1000;
    while (now_ns() < end) {
    }
}

template <typename Condition>
void wait_until(Condition condition) {
    while (!condition()) sched_yield(); // with fewer CPUs than threads the other one must run
}

// Each thread has a CPU of its own: a delay holds the CPU, and on a shared one it would keep the
// other thread from running, whatever the functions have to do with each other.
void stay_on(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof(set), &set); // with one CPU: as it is
}

// Hands units from one thread to another, a few ahead.
class Queue {
  public:
    void put() {
        wait_until([this] { return waiting_ < 4; });
        ++waiting_;
    }
    void take() {
        wait_until([this] { return waiting_ > 0; });
        --waiting_;
    }

  private:
    std::atomic<int> waiting_{0};
};

} // namespace

SEMAPHORE(known_watched);

extern "C" {
[[APART]] void unit_done() {
    g_units.store(g_units.load() + 1); // one thread; the kernel probes no locked instruction
    MARK("nop", "known", "unit");
    MARK_WITH_SEMAPHORE("nop", "known", "watched", "known_watched");
#if defined(__x86_64__)
    MARK(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00", "known", "unit_nop5");
#endif
}
#define WORK(name, us)                               \
    [[APART]] void work_##name() {                   \
        static const long time = time_of(#name, us); \
        pass_us(time);                               \
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
WORK(step, 500)
WORK(leaf, 3)
}

namespace {

[[noreturn]] void serial() {
    for (;;) {
        work_a();
        work_b();
        unit_done();
    }
}

[[noreturn]] void slack() {
    Queue begin, end;
    std::thread([&] {
        stay_on(1);
        for (;;) {
            begin.take();
            work_short();
            end.put();
        }
    }).detach();
    stay_on(0);
    for (;;) {
        begin.put();
        work_long();
        end.take();
        unit_done();
    }
}

[[noreturn]] void apart() {
    std::thread([] {
        stay_on(1);
        for (;;) work_off();
    }).detach();
    stay_on(0);
    for (;;) {
        work_on();
        unit_done();
    }
}

[[noreturn]] void pipeline() {
    Queue queue;
    std::thread([&] {
        stay_on(1);
        for (;;) {
            work_first();
            queue.put();
        }
    }).detach();
    stay_on(0);
    for (;;) {
        queue.take();
        work_second();
        unit_done();
    }
}

[[noreturn]] void convoy() {
    std::atomic<bool> locked{false};
    std::thread([&] {
        stay_on(1);
        for (;;) {
            locked = true;
            work_locked();
            locked = false;
            pass_us(3000);
        }
    }).detach();
    stay_on(0);
    for (;;) {
        if (locked) {
            const uint64_t begin = now_ns();
            wait_until([&] { return !locked; });
            pass_us(static_cast<long>(3 * (now_ns() - begin) / 1000)); // backs off
            continue;
        }
        pass_us(100);
        unit_done();
    }
}

[[noreturn]] void steps() {
    for (;;) {
        for (int step = 0; step < 40; ++step) work_step();
        unit_done();
    }
}

[[noreturn]] void paths() {
    for (;;) {
        work_both();
        pass_us(100);
        work_both();
        unit_done();
    }
}

[[noreturn]] void leaf() {
    for (;;) {
        for (int call = 0; call < 40; ++call) work_leaf();
        work_a();
        unit_done();
    }
}

[[noreturn]] void late() {
    static std::array<uint64_t, 1 << 16> ends; // of units, in turn
    std::atomic<uint64_t> worked{0};
    std::thread([&] {
        stay_on(1);
        for (uint64_t unit = 0;; ++unit) {
            wait_until([&] { return worked > unit; });
            wait_until([&] { return now_ns() >= ends[unit % ends.size()]; });
            unit_done();
        }
    }).detach();
    const auto after = static_cast<uint64_t>(time_of("after", 150000)) * 1000;
    stay_on(0);
    for (;;) {
        work_a();
        ends[worked % ends.size()] = now_ns() + after;
        ++worked;
    }
}

[[noreturn]] void counted() {
    const long steps = time_of("loops", 50000);
    uint64_t value = 1;
    for (;;) {
        for (long step = 0; step < steps; ++step) {
            value = value * 6364136223846793005u + 1442695040888963407u;
            asm volatile("" : "+r"(value)); // each step waits for the one before
        }
        unit_done();
    }
}

} // namespace

int main(int argc, char** argv) {
    const std::map<std::string, void (*)()> kinds = {
        {"serial", serial},     {"slack", slack}, {"apart", apart},     {"convoy", convoy},
        {"pipeline", pipeline}, {"paths", paths}, {"counted", counted}, {"steps", steps},
        {"late", late},         {"leaf", leaf}};
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
            std::printf("%llu\n", byte == 's' ? known_watched : g_units.load() + 0ULL);
            std::fflush(stdout);
        }
        _exit(0);
    }).detach();
    std::puts("ready");
    std::fflush(stdout);
    kind->second();
}
