// SPDX-License-Identifier: MIT
#include "engine/inprocess/table.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/inprocess/vdso.h"
#include "util/clock.h"

namespace speedbump::engine::inprocess {
namespace {

using std::chrono::milliseconds;

std::unique_ptr<Table> make_table(uint32_t columns) {
    auto table = Table::create({ClockSource::kVdso, 1, monotonic_ns(), monotonic_ns()}, columns);
    return table ? std::move(*table) : nullptr;
}

// As the hook reads it.
uint64_t now_by(const HookSettings& settings, const Ticks& of) {
    const HookClock& clock = settings.clocks[settings.clock & 1];
    const uint64_t ticks = of.now() - clock.origin_ticks;
    return clock.origin_ns +
           static_cast<uint64_t>(static_cast<unsigned __int128>(ticks) * clock.ns_per_tick >>
                                 kNsShift);
}

class TableClock : public testing::TestWithParam<ClockSource> {};

TEST_P(TableClock, IsTheMonotonicOne) {
    constexpr uint64_t kOff = 5'000; // ns; a slice has a million
    const auto ticks = measure_ticks(GetParam() == ClockSource::kTsc);
    if (!ticks) GTEST_SKIP() << ticks.error().message;
    if (ticks->source != GetParam()) GTEST_SKIP() << "this host has no such clock";
    auto made = Table::create(*ticks, 0);
    ASSERT_TRUE(made);
    const auto table = std::move(*made);
    for (int i = 0; i < 5; ++i) {
        const uint64_t before = on_host_clock(monotonic_ns());
        const uint64_t now = now_by(table->settings(), *ticks);
        const uint64_t after = on_host_clock(monotonic_ns());
        EXPECT_GE(now + kOff, before);
        EXPECT_LE(now, after + kOff);
        for (const uint64_t end = monotonic_ns() + 50'000'000; monotonic_ns() < end;) {
        }
        const uint32_t set = table->settings().clock;
        table->set_clock();
        EXPECT_EQ(table->settings().clock, set + 1);
    }
}

// The time stamp counter, whether the kernel trusts it here or not.
Ticks measure_counter() {
    const auto now = [] { return std::pair(__builtin_ia32_rdtsc(), monotonic_ns()); };
    const auto first = now();
    auto last = first;
    while (last.second < first.second + 50'000'000) last = now();
    return {ClockSource::kTsc,
            static_cast<double>(last.first - first.first) /
                static_cast<double>(last.second - first.second),
            last.first, last.second};
}

// As where the machine slept, and the counter went on meanwhile, or began anew.
TEST(Ticks, KeepTheirPaceWhereOneOfTheClocksStoodStill) {
    const Ticks measured = measure_counter();
    for (const double slept_ns : {3.6e12, -3.6e12}) {
        Ticks before = measured;
        before.origin_ticks -=
            static_cast<uint64_t>(static_cast<int64_t>(slept_ns * before.per_ns));
        const Ticks after = before.measured_again();
        EXPECT_EQ(after.per_ns, before.per_ns);
        const auto apart = static_cast<int64_t>(after.origin_ticks - measured.at(after.origin_ns));
        EXPECT_LT(std::abs(static_cast<double>(apart)), measured.per_ns * 1e9); // a second
    }
}

TEST(Table, WindowsLieByTheMonotonicClockAlsoWhereTheCounterJumps) {
    const Ticks measured = measure_counter();
    Ticks before = measured; // an hour ago by the counter, just now by the clock
    before.origin_ticks -= static_cast<uint64_t>(3.6e12 * before.per_ns);
    const auto made = Table::create(before, 0);
    ASSERT_TRUE(made);
    Table& table = **made;
    TargetSettings settings;
    settings.start = std::chrono::minutes(1);
    settings.duration = std::chrono::minutes(2);
    const uint64_t armed = monotonic_ns();
    ASSERT_TRUE(table.configure(3, settings, armed));
    ASSERT_TRUE(table.configure(4, {}, armed));
    table.set_clock();
    const auto off_by = [&](uint64_t ticks, uint64_t ns) {
        return std::abs(static_cast<double>(static_cast<int64_t>(ticks - measured.at(ns))));
    };
    const double some = measured.per_ns * 1e9; // a second
    EXPECT_LT(off_by(table.targets()[3].start_ticks, armed + 60'000'000'000), some);
    EXPECT_LT(off_by(table.targets()[3].end_ticks, armed + 180'000'000'000), some);
    EXPECT_EQ(table.targets()[4].start_ticks, 0u);
    EXPECT_EQ(table.targets()[4].end_ticks, 0u);
}

INSTANTIATE_TEST_SUITE_P(Each, TableClock, testing::Values(ClockSource::kTsc, ClockSource::kVdso),
                         [](const auto& source) {
                             return source.param == ClockSource::kTsc ? "tsc" : "vdso";
                         });

TEST(Vdso, ReadsTheClockOfThisProcess) {
    if (!vdso_reads_clock()) GTEST_SKIP() << "the clock takes a system call here";
    const auto clock = vdso_clock_of(getpid());
    ASSERT_TRUE(clock);
    const auto read = reinterpret_cast<int (*)(clockid_t, timespec*)>(clock->address);
    const uint64_t before = on_host_clock(monotonic_ns());
    timespec now{};
    ASSERT_EQ(read(CLOCK_MONOTONIC, &now), 0);
    const auto ns = static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 +
                    static_cast<uint64_t>(now.tv_nsec) - clock->ahead_ns;
    EXPECT_GE(ns, before);
    EXPECT_LE(ns, on_host_clock(monotonic_ns()));
}

TEST(Vdso, IsRefusedWhereItWasChanged) {
    const pid_t child = fork();
    if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        pause();
        _exit(0);
    }
    const auto before = vdso_clock_of(child);
    // As a debugger's breakpoint there.
    const Fd memory(open(("/proc/" + std::to_string(child) + "/mem").c_str(), O_RDWR | O_CLOEXEC));
    const auto place = static_cast<off_t>(getauxval(AT_SYSINFO_EHDR) + 2048);
    const ssize_t written = pwrite(memory.get(), "\xcc", 1, place);
    const auto after = vdso_clock_of(child);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    ASSERT_EQ(written, 1);
    EXPECT_TRUE(before);
    ASSERT_FALSE(after);
    EXPECT_EQ(after.error().kind, ErrorKind::kUnsupported);
}

TEST(Table, TakesWhatAllCpusCountedInASlice) {
    constexpr uint32_t kColumns = 3, kColumn = 2;
    const auto table = make_table(kColumns);
    ASSERT_TRUE(table);
    const Extent& extent = table->extent();
    const uint64_t size = common_bytes(extent);
    // What a process of the session may do.
    void* const memory =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, table->common_fd(), 0);
    ASSERT_NE(memory, MAP_FAILED);
    auto* const slices =
        reinterpret_cast<sb_slice_counts*>(static_cast<std::byte*>(memory) + slices_offset());
    const auto cell = [&](uint32_t ring, uint64_t slice) -> sb_slice_counts& {
        return slices[ring * SB_RING_SLICES * kColumns + sb_cell(slice, kColumn, kColumns)];
    };
    Schedule& schedule = *table->schedule();
    schedule.clear();
    schedule.begin(1, milliseconds(5));
    const std::vector<nanoseconds> doses{nanoseconds(1), nanoseconds(2), nanoseconds(3)};
    schedule.add(doses);
    schedule.add(doses);
    for (uint32_t ring = 0; ring < extent.rings; ++ring) cell(ring, 1).hits += 1000 + ring;
    cell(extent.rings - 1, 0).delays += 7;
    uint64_t expected = 0;
    for (uint32_t ring = 0; ring < extent.rings; ++ring) expected += 1000 + ring;
    std::vector<SliceCounts> sums(kColumns);
    schedule.take(0, sums);
    EXPECT_EQ(sums[kColumn].delays, 7u);
    EXPECT_EQ(sums[kColumn].hits, 0u);
    schedule.take(1, sums);
    EXPECT_EQ(sums[kColumn].hits, expected);
    munmap(memory, size);
}

// What trampolines read is so at each moment that the loader leaves.
TEST(Table, StatesFollowWhatIsArmedAndConfigured) {
    const auto table = make_table(1);
    ASSERT_TRUE(table);
    const auto* const states = reinterpret_cast<const HookState*>(
        reinterpret_cast<const std::byte*>(&table->settings()) + states_offset());
    TargetSettings counted, delayed, disabled, scheduled;
    delayed.delay = nanoseconds(1);
    disabled.enabled = false;
    disabled.delay = nanoseconds(1);
    scheduled.column = 0;
    const auto all = [&](HookState a, HookState b, HookState c, HookState d) {
        return states[0] == a && states[1] == b && states[2] == c &&
               states[SB_MAX_TARGETS - 1] == d;
    };
    constexpr auto kOff = HookState::kOff;
    ASSERT_TRUE(table->configure(0, counted, 0));
    ASSERT_TRUE(table->configure(1, delayed, 0));
    EXPECT_TRUE(all(kOff, kOff, kOff, kOff));
    table->arm(true);
    EXPECT_TRUE(all(HookState::kCounted, HookState::kDelayed, kOff, kOff));
    ASSERT_TRUE(table->configure(2, disabled, 0));
    ASSERT_TRUE(table->configure(SB_MAX_TARGETS - 1, scheduled, 0));
    EXPECT_TRUE(all(HookState::kCounted, HookState::kDelayed, kOff, HookState::kDelayed));
    ASSERT_TRUE(table->configure(1, counted, 0));
    ASSERT_TRUE(table->configure(0, disabled, 0));
    EXPECT_TRUE(all(kOff, HookState::kCounted, kOff, HookState::kDelayed));
    table->arm(false);
    EXPECT_TRUE(all(kOff, kOff, kOff, kOff));
    // A signal handler has ended the session: nothing begins again.
    table->arm(true);
    *table->armed_word() = 0;
    ASSERT_TRUE(table->configure(1, delayed, 0));
    EXPECT_EQ(states[1], kOff);
}

TEST(Table, NobodyElseWritesItsSettings) {
    const auto table = make_table(1);
    ASSERT_TRUE(table);
    EXPECT_EQ(mmap(nullptr, settings_bytes(table->extent()), PROT_READ | PROT_WRITE, MAP_SHARED,
                   table->fd(), 0),
              MAP_FAILED);
    EXPECT_EQ(errno, EPERM);
}

TEST(Table, RingsTakeABoundedShareOfMemory) {
    for (const uint32_t columns : {0u, 1u, 100u, uint32_t{SB_MAX_COLUMNS}}) {
        const auto table = make_table(columns);
        ASSERT_TRUE(table);
        const Extent& extent = table->extent();
        EXPECT_EQ(extent.columns, columns);
        EXPECT_EQ(extent.rings & (extent.rings - 1), 0u) << "masked by the hook";
        EXPECT_LE(Layout(0, 10'000, extent).end, uint64_t{128} << 20);
        EXPECT_EQ(table->schedule() != nullptr, columns != 0);
    }
}

} // namespace
} // namespace speedbump::engine::inprocess
