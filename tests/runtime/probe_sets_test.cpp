// SPDX-License-Identifier: MIT
// A file changes from one set of probes to another while its code is called: each call counts once.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "elf/symbols.h"
#include "engine/bpf/bpf_engine.h"
#include "util/fd.h"

namespace speedbump::engine {
namespace {

extern "C" [[gnu::noinline]] void speedbump_called_while_sets_change() {
    asm volatile("");
}

// Calls it on a thread of its own until the end of its life.
class Caller {
  public:
    Caller()
        : thread_([this] {
              for (; !stop_; ++calls_) speedbump_called_while_sets_change();
          }) {}
    uint64_t calls() const { return calls_; }
    uint64_t stop() {
        stop_ = true;
        thread_.join();
        return calls_;
    }

  private:
    std::atomic<bool> stop_{false};
    std::atomic<uint64_t> calls_{0};
    std::thread thread_;
};

std::optional<uint64_t> offset_of(const std::string& name) {
    const auto file =
        elf::ElfFile::open(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC), "this program");
    if (!file) return std::nullopt;
    for (const elf::Function& function : (*file)->functions())
        if (std::count(function.names.begin(), function.names.end(), name) != 0)
            return function.file_offset;
    return std::nullopt;
}

class ProbeSetsOfAFile : public testing::TestWithParam<const char*> {
  protected:
    void SetUp() override {
        if (geteuid() != 0) GTEST_SKIP() << "attaching needs root";
        if (*GetParam() != 0) ::setenv("SPEEDBUMP_WITHOUT", GetParam(), 1);
        const Features features = probe_features();
        ::unsetenv("SPEEDBUMP_WITHOUT");
        auto engine = BpfEngine::load(features);
        ASSERT_TRUE(engine) << engine.error().message;
        engine_ = std::move(*engine);
        if (!engine_->capabilities().narrow) GTEST_SKIP() << "no probe can be aimed at one process";
        const auto offset = offset_of("speedbump_called_while_sets_change");
        ASSERT_TRUE(offset);
        probes_ = {{0, *offset, elf::SiteKind::kSingleStep}};
        ASSERT_TRUE(engine_->add_member(engine_->own_tgid(), 1));
    }

    Attached attach(uint32_t set, bool is_wide) {
        std::vector<RefusedProbe> refused;
        const auto only = is_wide ? std::nullopt : std::optional<pid_t>(getpid());
        auto attached = engine_->attach({file_.get(), probes_, set}, only, refused);
        EXPECT_TRUE(attached) << attached.error().message;
        EXPECT_TRUE(refused.empty());
        return attached ? std::move(*attached) : nullptr;
    }
    void configure(const ProbeSets& sets) { ASSERT_TRUE(engine_->configure(0, {}, 0, sets)); }
    uint64_t hits() {
        uint64_t total = 0;
        const auto counts = engine_->read_counts();
        EXPECT_TRUE(counts);
        if (counts)
            for (const Counts& one : *counts) total += one.hits;
        return total;
    }
    void release(Attached attached) {
        std::vector<Attached> all;
        all.push_back(std::move(attached));
        engine_->release(std::move(all));
    }

    Fd file_{::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)};
    std::vector<Probe> probes_;
    std::unique_ptr<BpfEngine> engine_;
};

TEST_P(ProbeSetsOfAFile, ChangeWithoutAHitLostOrCountedTwice) {
    Attached now = attach(0, false);
    configure({});
    engine_->arm(true);
    Caller caller;
    constexpr uint32_t kChanges = 10;
    for (uint32_t set = 0; set < kChanges; ++set) {
        configure({set, set + 1, false});
        Attached next = attach(set + 1, set % 2 == 0);
        // Once is enough for a session; a hit that is under way is met by one of many.
        const uint64_t before = caller.calls();
        do
            for (int i = 0; i < 20001; ++i) configure({set, set + 1, i % 2 == 0});
        while (caller.calls() - before < 1000);
        release(std::exchange(now, std::move(next)));
        configure({set + 1, set + 1});
    }
    const uint64_t calls = caller.stop();
    EXPECT_EQ(hits(), calls);
}

TEST_P(ProbeSetsOfAFile, StayAsTheyWereWhenTheNewerIsTakenOutAgain) {
    Attached now = attach(0, false);
    configure({});
    engine_->arm(true);
    Caller caller;
    for (uint32_t set = 1; set < 30; ++set) {
        configure({0, set, false});
        release(attach(set, true));
        configure({});
    }
    const uint64_t calls = caller.stop();
    EXPECT_EQ(hits(), calls);
}

INSTANTIATE_TEST_SUITE_P(Links, ProbeSetsOfAFile, testing::Values("", "uprobe_multi"),
                         [](const auto& one) { return *one.param ? "Perf" : "Multi"; });

// As a move into a cgroup adds one just while the loader adds another.
TEST(Members, GetAllRootsThatAreAddedAtOnce) {
    if (geteuid() != 0) GTEST_SKIP() << "attaching needs root";
    const auto engine = BpfEngine::load(probe_features());
    ASSERT_TRUE(engine) << engine.error().message;
    constexpr uint32_t kTgid = 0x7ffffff0; // of no process
    constexpr int kRoots = 63;
    EXPECT_EQ((*engine)->member_roots(kTgid), 0u);
    for (int round = 0; round < 40; ++round) {
        ASSERT_TRUE(*(*engine)->add_member(kTgid, 1));
        EXPECT_FALSE(*(*engine)->add_member(kTgid, 1));
        std::atomic<int> arrived{0};
        const auto add_each_second = [&](int first) {
            for (int root = first; root < kRoots; root += 2) {
                ++arrived; // both begin a pair at once
                while (arrived < (root + 1) / 2 * 2) std::this_thread::yield();
                const auto added = (*engine)->add_member(kTgid, uint64_t{1} << root);
                if (!added || !*added) ADD_FAILURE() << root;
            }
        };
        std::thread odd(add_each_second, 1);
        add_each_second(2);
        odd.join();
        ASSERT_EQ((*engine)->member_roots(kTgid), UINT64_MAX >> 1) << round;
        (*engine)->remove_member(kTgid);
        ASSERT_EQ((*engine)->member_roots(kTgid), 0u);
    }
}

} // namespace
} // namespace speedbump::engine
