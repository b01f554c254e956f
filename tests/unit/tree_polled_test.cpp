// SPDX-License-Identifier: MIT
#include "tree/polled_tree.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "../cpu_time.h"

namespace speedbump::tree {
namespace {

using namespace std::chrono_literals;
using Type = TreeEvent::Type;

// As proc_pid_stat(5) has it, up to field 28 and some more.
std::string stat_text(const std::string& name, char state, uint64_t flags, int threads) {
    return "42 (" + name + ") " + state + " 7 42 42 0 -1 " + std::to_string(flags) +
           " 1 0 0 0 0 0 0 0 20 0 " + std::to_string(threads) +
           " 0 300 8192 10 18446744073709551615 4096 8192 140000000000000 0 0 0\n";
}

TEST(ProcessStat, IsReadWhateverTheNameIs) {
    for (const std::string name : {"plain", "a) S 1 (b", "", "two words)", "((", "\n"}) {
        const auto stat = parse_process_stat(stat_text(name, 'S', 0x400000, 3));
        ASSERT_TRUE(stat) << name;
        EXPECT_EQ(stat->command, name);
        EXPECT_EQ(stat->parent, 7);
        EXPECT_FALSE(stat->kernel_thread || stat->ended);
        EXPECT_EQ(stat->start_time,
                  300 * (1'000'000'000 / static_cast<uint64_t>(sysconf(_SC_CLK_TCK))));
        EXPECT_EQ(stat->size, 8192u);
        EXPECT_EQ(stat->start_code, 4096u);
        EXPECT_EQ(stat->start_stack, 140000000000000u);
    }
}

TEST(ProcessStat, AZombieHasEndedUnlessOtherThreadsLive) {
    EXPECT_TRUE(parse_process_stat(stat_text("x", 'Z', 0, 1))->ended);
    EXPECT_FALSE(parse_process_stat(stat_text("x", 'Z', 0, 2))->ended);
    EXPECT_TRUE(parse_process_stat(stat_text("x", 'X', 0, 1))->ended);
    EXPECT_TRUE(parse_process_stat(stat_text("kthreadd", 'S', 0x208040, 1))->kernel_thread);
}

TEST(ProcessStat, OtherTextIsRefused) {
    const std::string whole = stat_text("name", 'S', 0, 1);
    for (size_t size = 0; size < whole.find("140000000000000"); ++size)
        EXPECT_FALSE(parse_process_stat(whole.substr(0, size))) << size;
    EXPECT_FALSE(parse_process_stat("42 )name( S 1 2 3"));
    EXPECT_FALSE(parse_process_stat("42 (name) S one two"));
}

TEST(Proc, ListsThisProcess) {
    const auto list = list_proc();
    const auto self = static_cast<uint32_t>(getpid());
    size_t found = 0;
    for (const ListedProcess& process : list) {
        if (process.tgid != self) continue;
        ++found;
        EXPECT_EQ(process.parent_tgid, static_cast<uint32_t>(getppid()));
        EXPECT_FALSE(process.ended || process.kernel_thread);
    }
    EXPECT_EQ(found, 1u);
}

// A child that does what it is told, a byte at a time: 'f' forks one that hears instead of it, 'e'
// runs another program, 'm' maps memory. What it does not know ends it.
class Child {
  public:
    Child() {
        if (pipe(ends_) != 0) std::abort();
        pid_ = fork();
        if (pid_ == 0) hear();
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;
    ~Child() {
        kill(-pid_, SIGKILL);
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        close(ends_[0]);
        close(ends_[1]);
    }
    void tell(char what) const { ASSERT_EQ(write(ends_[1], &what, 1), 1); }
    uint32_t tgid() const { return static_cast<uint32_t>(pid_); }

  private:
    [[noreturn]] void hear() const {
        setpgid(0, 0);
        for (char what = 0; read(ends_[0], &what, 1) == 1;) {
            if (what == 'e') execl("/bin/sleep", "sleep", "1000", static_cast<char*>(nullptr));
            if (what == 'm')
                mmap(nullptr, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            else if (what != 'f')
                break;
            else if (fork() != 0)
                for (;;) pause();
        }
        _exit(0);
    }

    int ends_[2];
    pid_t pid_ = -1;
};

// The first event of this type that it tells of within a time that is long.
std::optional<TreeEvent> next(PolledTree& tree, Type type) {
    for (const auto end = Clock::now() + kWithoutEnd; Clock::now() < end;
         std::this_thread::sleep_for(1ms))
        for (const TreeEvent& event : tree.drain_events())
            if (event.type == type) return event;
    return std::nullopt;
}

bool anybody(pid_t) {
    return true;
}

TEST(PolledTree, TellsOfForksNewProgramsAndEnds) {
    PolledTree tree(anybody);
    Child child;
    ASSERT_TRUE(*tree.add_member(child.tgid(), 5));
    EXPECT_FALSE(*tree.add_member(child.tgid(), 4)) << "it has these bits";
    EXPECT_TRUE(*tree.add_member(child.tgid(), 2));
    child.tell('f');
    const auto born = next(tree, Type::kFork);
    ASSERT_TRUE(born);
    EXPECT_EQ(born->parent_tgid, child.tgid());
    EXPECT_EQ(born->roots, 7u);
    EXPECT_EQ(tree.member_roots(born->tgid), 7u);
    EXPECT_EQ(tree.member_count(), 2u);
    child.tell('e'); // the grandchild
    const auto execed = next(tree, Type::kExec);
    ASSERT_TRUE(execed);
    EXPECT_EQ(execed->tgid, born->tgid);
    EXPECT_EQ(execed->command, "sleep");
    kill(born->pid, SIGKILL); // it stays a zombie
    const auto ended = next(tree, Type::kExit);
    ASSERT_TRUE(ended);
    EXPECT_EQ(ended->tgid, born->tgid);
    EXPECT_EQ(tree.member_count(), 1u);
}

TEST(PolledTree, AChildThatHasRunAnotherProgramBeforeItIsSeenIsToldOfAsSuch) {
    PolledTree tree(anybody);
    Child child;
    child.tell('f');
    child.tell('e');
    // Once the grandchild is what it is to be.
    const auto is_sleep = [&] {
        for (const ListedProcess& process : list_proc())
            if (process.parent_tgid == child.tgid() && process.command == "sleep") return true;
        return false;
    };
    for (const auto end = Clock::now() + kWithoutEnd; !is_sleep() && Clock::now() < end;)
        std::this_thread::sleep_for(1ms);
    ASSERT_TRUE(*tree.add_member(child.tgid(), 1));
    std::vector<Type> told;
    for (const auto end = Clock::now() + kWithoutEnd; told.empty() && Clock::now() < end;)
        for (const TreeEvent& event : tree.drain_events()) told.push_back(event.type);
    EXPECT_EQ(told, (std::vector{Type::kFork, Type::kExec}));
}

TEST(PolledTree, WhoMayNotBelongDoesNotNorItsChildren) {
    pid_t asked = 0;
    PolledTree tree([&](pid_t pid) {
        asked = pid;
        return false;
    });
    Child child;
    ASSERT_TRUE(*tree.add_member(child.tgid(), 1));
    child.tell('f');
    for (const auto end = Clock::now() + kWithoutEnd; asked == 0 && Clock::now() < end;)
        EXPECT_TRUE(tree.drain_events().empty());
    EXPECT_NE(asked, 0);
    EXPECT_EQ(tree.member_count(), 1u);
}

TEST(PolledTree, ALookThatHasToWaitPutsTheNextOneOffNoLonger) {
    bool is_asked = false;
    PolledTree tree([&](pid_t) {
        is_asked = true;
        std::this_thread::sleep_for(1500ms); // as where others have the CPUs
        return true;
    });
    const auto mappings = tree.mappings();
    Child child;
    ASSERT_TRUE(*tree.add_member(child.tgid(), 1));
    child.tell('f');
    for (const auto end = Clock::now() + kWithoutEnd; !is_asked && Clock::now() < end;)
        tree.drain_events();
    ASSERT_TRUE(is_asked);
    child.tell('m');
    bool lost = false;
    std::vector<NewMapping> found;
    for (const auto end = Clock::now() + kWithoutEnd; found.empty() && Clock::now() < end;) {
        tree.drain_events();
        found = mappings->drain(lost);
    }
    EXPECT_EQ(found.size(), 1u);
}

TEST(PolledTree, ChildrenAreNotFollowedUnasked) {
    PolledTree tree(anybody);
    tree.follow_children(false);
    tree.record_edges(true); // looks at each call
    Child child;
    ASSERT_TRUE(*tree.add_member(child.tgid(), 1));
    child.tell('f');
    for (const auto end = Clock::now() + 200ms; Clock::now() < end;)
        EXPECT_TRUE(tree.drain_events().empty());
}

TEST(PolledTree, TellsWhoHasMappedSomething) {
    PolledTree tree(anybody);
    const auto mappings = tree.mappings();
    Child child;
    ASSERT_TRUE(*tree.add_member(child.tgid(), 1));
    bool lost = false;
    child.tell('m');
    std::vector<NewMapping> found;
    for (const auto end = Clock::now() + kWithoutEnd; found.empty() && Clock::now() < end;) {
        EXPECT_TRUE(tree.drain_events().empty());
        found = mappings->drain(lost);
    }
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].pid, static_cast<pid_t>(child.tgid()));
    EXPECT_FALSE(lost);
    EXPECT_TRUE(mappings->moderated()) << "it has to be asked by the clock";
}

TEST(PolledTree, WhoHasEndedIsNoMember) {
    PolledTree tree(anybody);
    uint32_t gone = 0;
    {
        Child child;
        gone = child.tgid();
    }
    EXPECT_FALSE(*tree.add_member(gone, 1));
    EXPECT_EQ(tree.member_count(), 0u);
}

} // namespace
} // namespace speedbump::tree
