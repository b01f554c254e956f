// SPDX-License-Identifier: MIT
#include "engine/inprocess/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <memory>
#include <vector>

#include "process/memory.h"
#include "util/clock.h"

namespace speedbump::engine::inprocess {
namespace {

using namespace std::chrono_literals;

constexpr size_t kPage = 4096;

std::vector<Entry> entries_of(uint64_t region, size_t count) {
    std::vector<Entry> entries(count);
    for (size_t i = 0; i < count; ++i) {
        entries[i].region = region;
        entries[i].site = i;
    }
    return entries;
}

TEST(Ledger, HolesSideBySideAreOne) {
    for (const auto& order : {std::array{0, 3, 6}, std::array{6, 3, 0}, std::array{0, 6, 3}}) {
        auto made = Ledger::create();
        ASSERT_TRUE(made);
        const std::unique_ptr<Ledger> ledger = std::move(*made);
        for (size_t i = 0; i < 3; ++i) EXPECT_EQ(ledger->add(entries_of(1, 3)).value(), 3 * i);
        EXPECT_EQ(ledger->add(entries_of(2, 1)).value(), 9u);
        for (const int first : order) ledger->forget(static_cast<size_t>(first), 3);
        EXPECT_EQ(ledger->entries().size(), 1u);
        EXPECT_EQ(ledger->add(entries_of(1, 8)).value(), 0u);
        EXPECT_EQ(ledger->add(entries_of(1, 1)).value(), 8u);
        EXPECT_EQ(ledger->add(entries_of(1, 1)).value(), 10u);
    }
}

TEST(Ledger, GivesEntriesByRegion) {
    auto made = Ledger::create();
    ASSERT_TRUE(made);
    const std::unique_ptr<Ledger> ledger = std::move(*made);
    for (const uint64_t region : {3, 1, 2, 1}) ASSERT_TRUE(ledger->add(entries_of(region, 2)));
    ledger->strike(0);
    std::vector<uint64_t> regions;
    for (const Entry& entry : ledger->entries()) regions.push_back(entry.region);
    EXPECT_THAT(regions, testing::ElementsAre(1, 1, 1, 1, 2, 2, 3));
}

// A child with a region that begins with its identity, and behind it code with jumps.
class TakeOut : public ::testing::Test {
  protected:
    static constexpr Identity kIdentity = {'w', 'h', 'o', ' ', 'i', 't', ' ', 'i', 's', '.'};
    static constexpr size_t kJumps = 3;

    void SetUp() override {
        auto* const place = static_cast<unsigned char*>(
            mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        ASSERT_NE(place, MAP_FAILED);
        place_ = place;
        std::memcpy(place, kIdentity.data(), kIdentity.size());
        for (size_t i = 0; i < kJumps; ++i) {
            Entry entry;
            entry.region = reinterpret_cast<uint64_t>(place);
            entry.identity = kIdentity;
            entry.site = reinterpret_cast<uint64_t>(place + kPage + 16 * i);
            entry.before = {0x55, 0x48, 0x89, 0xe5, 0x90};
            entry.jump = {0xe9, 1, 2, 3, static_cast<unsigned char>(i)};
            std::memcpy(place + kPage + 16 * i, entry.jump.data(), entry.jump.size());
            entries_.push_back(entry);
        }
    }
    void TearDown() override {
        if (child_ > 0) {
            kill(child_, SIGKILL);
            waitpid(child_, nullptr, 0);
        }
        munmap(place_, 3 * kPage);
    }
    Result<void> take_out() {
        child_ = fork();
        if (child_ == 0)
            for (;;) pause();
        const auto turn = inject::Turn::take_if_any(child_, Clock::now() + 60s);
        if (!turn) return turn.error();
        return inprocess::take_out(*turn, entries_, Clock::now() + 60s);
    }
    std::array<unsigned char, 5> there(size_t jump) const {
        std::array<unsigned char, 5> bytes{};
        EXPECT_TRUE(
            process::RemoteMemory(child_).read(entries_[jump].site, bytes.data(), bytes.size()));
        return bytes;
    }

    unsigned char* place_ = nullptr;
    std::vector<Entry> entries_;
    pid_t child_ = 0;
};

TEST_F(TakeOut, PutsBackWhatWasThere) {
    const auto done = take_out();
    ASSERT_TRUE(done) << done.error().message;
    for (size_t i = 0; i < kJumps; ++i) EXPECT_EQ(there(i), entries_[i].before) << i;
}

// A debugger's breakpoint, say: it puts back the byte of the jump, which must lead somewhere then.
TEST_F(TakeOut, IsNotDoneWhereSomebodyElseHasChangedAJump) {
    place_[kPage + 16 + 2] = 0xcc;
    const auto done = take_out();
    ASSERT_FALSE(done);
    EXPECT_THAT(done.error().message, testing::HasSubstr("somebody else has changed the jump"));
    EXPECT_EQ(there(0), entries_[0].before);
    EXPECT_EQ(there(1)[0], entries_[1].jump[0]);
    EXPECT_EQ(there(2), entries_[2].before);
}

TEST_F(TakeOut, IsDoneWhereTheCodeIsGone) {
    ASSERT_EQ(munmap(place_ + kPage, kPage), 0);
    const auto done = take_out();
    EXPECT_TRUE(done) << done.error().message;
}

TEST_F(TakeOut, IsDoneWhereSomethingElseIsMapped) {
    for (Entry& entry : entries_) entry.inode = 17;
    std::memset(place_ + kPage, 0x90, kPage);
    const auto done = take_out();
    EXPECT_TRUE(done) << done.error().message;
}

TEST_F(TakeOut, LeavesTheRegionsOfOthersAlone) {
    entries_[1].identity[0] = 'x'; // in order by region and identity
    std::swap(entries_[1], entries_[2]);
    const auto done = take_out();
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(there(0), entries_[0].before);
    EXPECT_EQ(there(1), entries_[1].before);
    EXPECT_EQ(there(2), entries_[2].jump);
}

} // namespace
} // namespace speedbump::engine::inprocess
