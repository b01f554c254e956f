// SPDX-License-Identifier: MIT
// A hostile target beside a loader: a thread writes random words to all that a target can write of
// the table that it shares with the session, while the loader reads its counts and lets it go.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "../cpu_time.h"
#include "engine/python/python_table.h"
#include "mutator.h"

namespace {

using namespace speedbump;
using engine::PythonTable;

void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "broken: %s\n", what);
    std::abort();
}

// The counters as a target has them mapped.
class Target {
  public:
    Target(const PythonTable& table, uint32_t lines, uint32_t columns, uint64_t seed)
        : random_(seed), lines_(lines), columns_(columns) {
        bytes_ = static_cast<size_t>(::lseek(table.counters_fd(), 0, SEEK_END));
        void* memory =
            ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, table.counters_fd(), 0);
        require(memory != MAP_FAILED, "a target maps its counters");
        words_ = static_cast<uint64_t*>(memory);
        void* settings =
            ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, table.settings_fd(), 0);
        require(settings == MAP_FAILED, "no target maps settings to write them");
        require(::ftruncate(table.counters_fd(), 0) != 0, "no target cuts its counters off");
        writer_ = std::thread([this] {
            while (!is_over_) write();
        });
    }
    ~Target() {
        is_over_ = true;
        writer_.join();
        ::munmap(words_, bytes_);
    }
    Target(const Target&) = delete;
    Target& operator=(const Target&) = delete;

    uint64_t written() const { return written_; }

  private:
    // Mostly to the first slots, so that they are full of what looks like counts.
    void write() {
        const std::array<uint64_t, 8> values = {0,
                                                1,
                                                ~uint64_t{0},
                                                uint64_t{1} << 63,
                                                SB_WRITER(1, INT_MAX),
                                                SB_WRITER(~0u, 1u << 31),
                                                random_.next(),
                                                random_.next() >> 40};
        const size_t first = sb_slot_offset(lines_, columns_, 0) / 8;
        const size_t some =
            std::min<size_t>(bytes_ / 8, first + 4 * sb_slot_bytes(lines_, columns_) / 8);
        const size_t at = random_.below(random_.below(4) == 0 ? bytes_ / 8 : some);
        __atomic_store_n(&words_[at], values[random_.below(values.size())], __ATOMIC_RELAXED);
        ++written_;
    }

    fuzz::Random random_;
    uint32_t lines_;
    uint32_t columns_;
    size_t bytes_ = 0;
    uint64_t* words_ = nullptr;
    std::atomic<bool> is_over_{false};
    std::atomic<uint64_t> written_{0};
    std::thread writer_;
};

void check(const PythonTable& table, uint32_t lines) {
    const auto process_of = [](uint32_t, pid_t pid) {
        require(pid > 0, "what is asked for is a PID");
        return pid % 3;
    };
    const std::vector<engine::Counts> counts = table.read_counts(process_of);
    require(counts.size() <= size_t{lines} * 3, "one count per line and process");
    for (const engine::Counts& one : counts) {
        require(one.target < lines, "a line of the table");
        require(one.requested.count() >= 0 && one.measured.count() >= 0, "times");
    }
    table.lost_counts();
}

void check_slices(PythonTable& table, uint32_t columns, fuzz::Random& random) {
    if (columns == 0) return;
    std::vector<engine::SliceCounts> sums(columns);
    for (int slice = 0; slice < 100; ++slice) table.schedule()->take(random.next(), sums);
    for (const engine::SliceCounts& one : sums) require(one.measured.count() >= 0, "times");
}

// Gives how many words were written.
uint64_t run(uint64_t seed, uint64_t& reads) {
    constexpr std::chrono::seconds kMaxTime(60); // sanitizers are slow
    limit_cpu_time(kMaxTime);
    fuzz::Random random(seed);
    const auto lines = static_cast<uint32_t>(1 + random.below(40));
    const auto columns = static_cast<uint32_t>(random.below(4));
    auto table = PythonTable::create(lines, columns);
    require(table.has_value(), "a table");
    const Target target(**table, lines, columns, random.next());
    (*table)->arm(true);
    const uint64_t until = reads + 20;
    for (; reads < until; ++reads) {
        (*table)->configure(static_cast<uint32_t>(random.below(lines)), {}, random.next());
        check(**table, lines);
        check_slices(**table, columns, random);
    }
    table->reset(); // the target goes on writing meanwhile
    return target.written();
}

} // namespace

#ifndef SPEEDBUMP_LIBFUZZER
// fuzz_counters READS SECONDS (of CPU time) [SEED]
int main(int argc, char** argv) {
    const uint64_t wanted = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 100'000;
    const auto seconds = std::chrono::seconds(argc > 2 ? std::atoi(argv[2]) : 10);
    uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
    const auto end = CpuClock::now() + seconds;
    uint64_t reads = 0;
    uint64_t written = 0;
    while (reads < wanted && CpuClock::now() < end) written += run(++seed, reads);
    std::printf("%llu inputs: words written beside %llu reads\n",
                static_cast<unsigned long long>(written), static_cast<unsigned long long>(reads));
    return written > 0 && reads > 0 ? 0 : 1;
}
#else
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    uint64_t seed = 0;
    for (size_t i = 0; i < size; ++i) seed = seed * 31 + data[i];
    uint64_t reads = 0;
    run(seed, reads);
    return 0;
}
#endif
