// SPDX-License-Identifier: MIT
// The table that a session shares with its targets: what a target can do to it.
#include "engine/python/python_table.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>
#include <thread>

#include "engine/python/python_side.h"
#include "targets/parser.h"

namespace speedbump::engine {
namespace {

constexpr uint32_t kLines = 3;

pid_t as_it_is(uint32_t, pid_t pid) {
    return pid;
}

uint32_t owner_of(int settings_fd) {
    sb_settings settings{};
    EXPECT_EQ(pread(settings_fd, &settings, sizeof settings, 0),
              static_cast<ssize_t>(sizeof settings));
    return settings.owner;
}

TEST(PythonTable, OnlyTheLoaderWritesSettings) {
    auto table = PythonTable::create(kLines);
    ASSERT_TRUE(table) << table.error().message;
    const int fd = (*table)->settings_fd();
    EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    EXPECT_EQ(pwrite(fd, "x", 1, 0), -1);
    void* readable = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
    ASSERT_NE(readable, MAP_FAILED);
    EXPECT_EQ(mprotect(readable, 4096, PROT_READ | PROT_WRITE), -1);
    (*table)->arm(true);
    EXPECT_EQ(static_cast<const sb_settings*>(readable)->armed, 1u);
    munmap(readable, 4096);
    // Nor by another name.
    const std::string again = "/proc/self/fd/" + std::to_string(fd);
    const int reopened = open(again.c_str(), O_RDWR | O_CLOEXEC);
    EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, reopened, 0), MAP_FAILED);
    close(reopened);
}

TEST(PythonTable, NobodyChangesItsSize) {
    auto table = PythonTable::create(kLines);
    ASSERT_TRUE(table) << table.error().message;
    for (int fd : {(*table)->settings_fd(), (*table)->counters_fd()}) {
        EXPECT_EQ(ftruncate(fd, 0), -1);
        EXPECT_EQ(ftruncate(fd, 1 << 28), -1);
        EXPECT_EQ(fallocate(fd, 0, 1 << 28, 4096), -1);
        EXPECT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1); // which would end all counting
    }
}

// Whatever a target writes into its counters is a number to the loader.
TEST(PythonTable, CountersAreNumbersOnly) {
    auto table = PythonTable::create(kLines);
    ASSERT_TRUE(table) << table.error().message;
    const off_t size = lseek((*table)->counters_fd(), 0, SEEK_END);
    ASSERT_GT(size, 0);
    void* memory = mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED,
                        (*table)->counters_fd(), 0);
    ASSERT_NE(memory, MAP_FAILED);
    auto* words = static_cast<uint64_t*>(memory);
    std::mt19937_64 random(11);
    const size_t count = static_cast<size_t>(size) / sizeof(uint64_t);
    for (int round = 0; round < 20; ++round) {
        for (size_t i = 0; i < count; i += 1 + random() % 16)
            words[i] = random() % 4 == 0 ? ~uint64_t{0} : random();
        Counts total;
        for (const Counts& counts : (*table)->read_counts(as_it_is)) {
            EXPECT_LT(counts.target, kLines);
            EXPECT_GE(counts.process, 0);
            EXPECT_GE(counts.requested.count(), 0);
            EXPECT_GE(counts.measured.count(), 0);
            total += counts;
        }
        EXPECT_GE(total.requested.count(), 0);
        EXPECT_GE(total.measured.count(), 0);
    }
    munmap(memory, static_cast<size_t>(size));
}

TEST(PythonTable, WritersAreToldApartByNamespace) {
    auto table = PythonTable::create(kLines);
    ASSERT_TRUE(table) << table.error().message;
    for (uint32_t slot : {1u, 2u}) {
        const uint64_t writer = SB_WRITER(slot == 1 ? 77 : 88, 5);
        const sb_counts counts{
            .hits = 10 * slot, .delays = slot, .requested_ns = 0, .measured_ns = 0};
        const auto at = static_cast<off_t>(sb_slot_offset(kLines, 0, slot));
        ASSERT_EQ(pwrite((*table)->counters_fd(), &writer, sizeof writer, at),
                  static_cast<ssize_t>(sizeof writer));
        ASSERT_EQ(pwrite((*table)->counters_fd(), &counts, sizeof counts,
                         at + static_cast<off_t>(sizeof(sb_slot) + 2 * sizeof(sb_counts))),
                  static_cast<ssize_t>(sizeof counts));
    }
    const auto counts = (*table)->read_counts(
        [](uint32_t pid_namespace, pid_t pid) { return pid_namespace == 77 ? 1000 + pid : 0; });
    ASSERT_EQ(counts.size(), 2u);
    EXPECT_EQ(counts[0].process, 0); // told by nobody
    EXPECT_EQ(counts[0].hits, 20u);
    EXPECT_EQ(counts[1].process, 1005);
    EXPECT_EQ(counts[1].hits, 10u);
    EXPECT_EQ(counts[1].target, 2u);
}

TEST(PythonTable, TheKernelTellsOfTheOwnersDeath) {
    int numbers[2];
    ASSERT_EQ(pipe(numbers), 0);
    const pid_t loader = fork();
    if (loader == 0) {
        auto table = PythonTable::create(kLines);
        const int fd = table ? (*table)->settings_fd() : -1;
        if (write(numbers[1], &fd, sizeof fd) != sizeof fd) _exit(1);
        for (;;) pause();
    }
    int fd = -1;
    ASSERT_EQ(read(numbers[0], &fd, sizeof fd), static_cast<ssize_t>(sizeof fd));
    ASSERT_GE(fd, 0);
    const std::string path = "/proc/" + std::to_string(loader) + "/fd/" + std::to_string(fd);
    const Fd settings(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(settings.valid());
    EXPECT_EQ(owner_of(settings.get()), static_cast<uint32_t>(loader));
    kill(loader, SIGKILL);
    waitpid(loader, nullptr, 0);
    EXPECT_TRUE(owner_of(settings.get()) & SB_TABLE_OWNER_DIED);
    close(numbers[0]);
    close(numbers[1]);
}

TEST(PythonTable, AThreadOwnsOneAtATime) {
    int settings_fd = -1;
    std::thread([&settings_fd] {
        auto first = PythonTable::create(kLines);
        ASSERT_TRUE(first) << first.error().message;
        auto second = PythonTable::create(kLines);
        ASSERT_FALSE(second);
        EXPECT_EQ(second.error().kind, ErrorKind::kInvalid);
        settings_fd = dup((*first)->settings_fd());
        first->reset();
        auto third = PythonTable::create(kLines);
        EXPECT_TRUE(third);
    }).join();
    // Closed, but its owner lived: no word of a death.
    EXPECT_EQ(owner_of(settings_fd), 0u);
    close(settings_fd);
}

TEST(PythonSide, ASecondOneOfAThreadIsAnError) {
    const auto parsed = targets::parse_targets("app:f delay=1us\n", "x");
    ASSERT_TRUE(parsed.errors.empty());
    const auto none = [](const std::string&) {};
    const auto first = PythonSide::create(parsed.file, 0, none);
    ASSERT_TRUE(first) << first.error().message;
    const auto second = PythonSide::create(parsed.file, 0, none); // what it had begun goes again
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().kind, ErrorKind::kInvalid);
}

} // namespace
} // namespace speedbump::engine
