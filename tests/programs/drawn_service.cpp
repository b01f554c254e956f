// SPDX-License-Identifier: MIT
// A service with the structure, the functions and the times that its arguments say, so that
// services can be drawn at random (tests/bench/live_coverage.py).
//
//   drawn_service STRUCTURE[=NUMBER] THREAD...
//   THREAD: CALLS[,CALLS]...   CALLS: FUNCTION:US[xTIMES][/EVERY], FUNCTION 0 to 9
//
// Function f0 takes US microseconds, and is called TIMES (1) times in each unit, or in each EVERYth
// one, all within unit_work(). unit_done() is called once per unit. STRUCTURE:
//
//   serial          one thread
//   paced=US        one thread, which begins a unit each US microseconds and sleeps in between
//   join            the threads begin each unit together, and it is done when all are
//   pipeline=ROOM   a unit goes from thread to thread, ROOM may wait before each
//   apart           the first thread makes the units; nobody waits for the others
//   pool            each thread makes units of its own, but one unit_done() at a time
//   convoy          the same, with the first CALLS of each thread under one lock
//   aside=EVERY     the first thread makes the units, and after EVERY of them hands a batch to the
//                   second one, of which one may wait
//
// Functions spin, and so do threads that wait for each other: what the wake-up of a sleeper takes
// depends on how long its CPU has slept, and on a virtual machine a delay before a sleep costs more
// than its length. So each thread needs a CPU. Prints "ready" first, and ends with its input.
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

uint64_t now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_nsec);
}

void sleep_until(uint64_t end_ns) {
    const timespec end = {static_cast<time_t>(end_ns / 1000000000u),
                          static_cast<long>(end_ns % 1000000000u)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, nullptr);
}

void pass(uint64_t ns) {
    const uint64_t end = now_ns() + ns;
    while (now_ns() < end) {
    }
}

} // namespace

extern "C" {
[[gnu::noinline, gnu::used]] void unit_done() {
    asm volatile("" ::: "memory");
}
#define FUNCTION(name)                                    \
    [[gnu::noinline, gnu::used]] void name(uint64_t ns) { \
        pass(ns);                                         \
        asm volatile("" ::: "memory"); /* no tail call */ \
    }
FUNCTION(f0)
FUNCTION(f1)
FUNCTION(f2)
FUNCTION(f3)
FUNCTION(f4)
FUNCTION(f5)
FUNCTION(f6)
FUNCTION(f7)
FUNCTION(f8)
FUNCTION(f9)
}

namespace {

constexpr std::array kFunctions = {f0, f1, f2, f3, f4, f5, f6, f7, f8, f9};

struct Calls {
    size_t function = 0;
    uint64_t ns = 0;
    uint64_t times = 1;
    uint64_t every = 1;

    void run(uint64_t unit) const {
        if (unit % every != every - 1) return;
        for (uint64_t i = 0; i < times; ++i) kFunctions[function](ns);
    }
};
using Work = std::vector<Calls>;

} // namespace

extern "C" {
[[gnu::noinline, gnu::used]] void unit_work(const Work& work, uint64_t unit) {
    for (const Calls& calls : work) calls.run(unit);
    asm volatile("" ::: "memory");
}
}

namespace {

[[noreturn]] void usage() {
    std::fputs("usage: drawn_service STRUCTURE[=NUMBER] FUNCTION:US[xTIMES][/EVERY],... ...\n",
               stderr);
    std::exit(2);
}

// "3:2.5x40/10"
Calls parse_calls(const std::string& text) {
    const char* at = text.c_str();
    char* end = nullptr;
    Calls calls;
    calls.function = std::strtoull(at, &end, 10);
    if (end == at || *end != ':' || calls.function >= kFunctions.size()) usage();
    calls.ns = static_cast<uint64_t>(1000 * std::strtod(end + 1, &end));
    if (*end == 'x') calls.times = std::strtoull(end + 1, &end, 10);
    if (*end == '/') calls.every = std::strtoull(end + 1, &end, 10);
    if (*end != '\0' || calls.every == 0) usage();
    return calls;
}

Work parse_work(const std::string& text) {
    Work work;
    for (size_t at = 0; at <= text.size();) {
        const size_t comma = std::min(text.find(',', at), text.size());
        work.push_back(parse_calls(text.substr(at, comma - at)));
        at = comma + 1;
    }
    return work;
}

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    asm volatile("yield");
#endif
}

// Units between threads, of which `room` may wait; one thread takes them.
class Queue {
  public:
    explicit Queue(uint64_t room) : room_(room) {}
    void put() {
        while (waiting_ >= room_) relax();
        ++waiting_;
    }
    void take() {
        while (waiting_ == 0) relax();
        --waiting_;
    }

  private:
    const uint64_t room_;
    std::atomic<uint64_t> waiting_ = 0;
};

[[noreturn]] void in_turn(const Work& work, uint64_t gap_ns) {
    uint64_t begin = now_ns();
    for (uint64_t unit = 0;; ++unit) {
        if (gap_ns > 0) sleep_until(begin);
        begin += gap_ns;
        unit_work(work, unit);
        unit_done();
    }
}

[[noreturn]] void join(const std::vector<Work>& threads) {
    Queue done(threads.size());
    std::vector<Queue*> begins;
    for (size_t i = 1; i < threads.size(); ++i) {
        auto* begin = new Queue(1);
        begins.push_back(begin);
        std::thread([&done, begin, &work = threads[i]] {
            for (uint64_t unit = 0;; ++unit) {
                begin->take();
                unit_work(work, unit);
                done.put();
            }
        }).detach();
    }
    for (uint64_t unit = 0;; ++unit) {
        for (Queue* begin : begins) begin->put();
        unit_work(threads[0], unit);
        for (size_t i = 1; i < threads.size(); ++i) done.take();
        unit_done();
    }
}

[[noreturn]] void pipeline(const std::vector<Work>& threads, size_t room) {
    Queue* from = nullptr;
    for (size_t i = 0; i + 1 < threads.size(); ++i) {
        auto* to = new Queue(room);
        std::thread([from, to, &work = threads[i]] {
            for (uint64_t unit = 0;; ++unit) {
                if (from) from->take();
                unit_work(work, unit);
                to->put();
            }
        }).detach();
        from = to;
    }
    for (uint64_t unit = 0;; ++unit) {
        if (from) from->take();
        unit_work(threads.back(), unit);
        unit_done();
    }
}

[[noreturn]] void apart(const std::vector<Work>& threads) {
    for (size_t i = 1; i < threads.size(); ++i)
        std::thread([&work = threads[i]] {
            for (uint64_t unit = 0;; ++unit) unit_work(work, unit);
        }).detach();
    in_turn(threads[0], 0);
}

// Handed on in turn: an unfair one could stay with one thread.
class FairLock {
  public:
    void lock() {
        const uint64_t mine = next_++;
        while (served_ != mine) relax();
    }
    void unlock() { ++served_; }

  private:
    std::atomic<uint64_t> next_ = 0, served_ = 0;
};

[[noreturn]] void pool(const std::vector<Work>& threads, bool is_convoy) {
    static FairLock lock;
    static FairLock counting;
    const auto work_for_ever = [is_convoy](const Work& work) {
        for (uint64_t unit = 0;; ++unit) {
            size_t first = 0;
            if (is_convoy) {
                const std::lock_guard held(lock);
                work[first++].run(unit);
            }
            for (; first < work.size(); ++first) work[first].run(unit);
            const std::lock_guard held(counting);
            unit_done();
        }
    };
    for (size_t i = 1; i < threads.size(); ++i)
        std::thread([&, i] { work_for_ever(threads[i]); }).detach();
    work_for_ever(threads[0]);
    std::abort(); // not reached
}

[[noreturn]] void aside(const std::vector<Work>& threads, uint64_t every) {
    static Queue batches(1);
    std::thread([&work = threads[1]] {
        for (uint64_t batch = 0;; ++batch) {
            batches.take();
            unit_work(work, batch);
        }
    }).detach();
    for (uint64_t unit = 0;; ++unit) {
        unit_work(threads[0], unit);
        if (unit % every == every - 1) batches.put();
        unit_done();
    }
}

} // namespace

int main(int argc, char** argv) {
    if (argc < 3) usage();
    std::string structure = argv[1];
    uint64_t number = 0;
    if (const size_t equals = structure.find('='); equals != std::string::npos) {
        number = std::strtoull(structure.c_str() + equals + 1, nullptr, 10);
        structure.resize(equals);
    }
    static std::vector<Work> threads;
    for (int i = 2; i < argc; ++i) threads.push_back(parse_work(argv[i]));
    prctl(PR_SET_TIMERSLACK, 1);
    std::thread([] {
        char byte;
        while (read(STDIN_FILENO, &byte, 1) > 0) {
        }
        _exit(0);
    }).detach();
    std::puts("ready");
    std::fflush(stdout);
    if (structure == "serial" || (structure == "paced" && number > 0))
        in_turn(threads[0], number * 1000);
    if (structure == "join") join(threads);
    if (structure == "pipeline" && number > 0) pipeline(threads, number);
    if (structure == "apart") apart(threads);
    if (structure == "pool" || structure == "convoy") pool(threads, structure == "convoy");
    if (structure == "aside" && number > 0 && threads.size() == 2) aside(threads, number);
    usage();
}
