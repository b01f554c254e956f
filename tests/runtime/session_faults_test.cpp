// SPDX-License-Identifier: MIT
// A session whose system calls fail: nothing is left out silently. The program is linked such that
// these calls pass through here.
#include <bpf/bpf.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "live.h"
#include "util/clock.h"

extern "C" [[gnu::noinline]] void called_by_family() {
    __asm__ volatile("" ::: "memory"); // else there would be nothing to call
}

namespace speedbump::session {
namespace {

namespace fs = std::filesystem;

// Which calls fail, counted from 1 since begin(); shared with the child that makes links.
struct Fault {
    std::atomic<int> calls{0};
    std::atomic<int> first{0}; // 0: none
    std::atomic<int> last{0};
    std::atomic<int> error_number{0};
    std::atomic<pid_t> caller{0};
    std::atomic<int> callers{0}; // how often it was another process than before

    void begin(int from, int to, int error) {
        calls = callers = caller = 0;
        error_number = error;
        last = to;
        first = from;
    }
    void end() { first = 0; }
    // The errno that this call shall fail with, or 0.
    int next() {
        const int call = ++calls;
        if (caller.exchange(getpid()) != getpid()) ++callers;
        return first != 0 && call >= first && call <= last ? error_number.load() : 0;
    }
};
constexpr int kForEver = 1'000'000'000;
constexpr size_t kFamilyRoom = 15; // SPEEDBUMP_WITHOUT=members leaves room for 16, one is its root

struct Faults {
    Fault batch; // bpf_map_lookup_batch
    Fault link;  // bpf_link_create of probes
    Fault open;  // of what a process has mapped
};

Faults& faults() {
    static Faults* const shared = [] {
        void* const page = mmap(nullptr, sizeof(Faults), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) throw std::runtime_error("mmap");
        return new (page) Faults;
    }();
    return *shared;
}

// The puppet's program under two names.
class Copies {
  public:
    Copies() {
        std::string name = fs::temp_directory_path() / "speedbump-test-XXXXXX";
        if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp");
        folder_ = name;
        fs::copy_file(std::getenv("SPEEDBUMP_PROGRAMS") + std::string("/puppet"), first());
        fs::create_hard_link(first(), second());
    }
    Copies(const Copies&) = delete;
    Copies& operator=(const Copies&) = delete;
    ~Copies() {
        std::error_code ignored; // what stays is in a folder for what is temporary
        fs::remove_all(folder_, ignored);
    }
    std::string first() const { return folder_ / "puppet"; }
    std::string second() const { return folder_ / "second"; }

  private:
    fs::path folder_;
};

class SessionFaults : public LiveSession {
  protected:
    ~SessionFaults() override {
        for (Fault* fault : {&faults().batch, &faults().link, &faults().open}) fault->end();
    }

    static uint64_t hits(const Snapshot& snapshot) {
        uint64_t sum = 0;
        for (const engine::Counts& counts : snapshot.counts) sum += counts.hits;
        return sum;
    }
    // How warnings begin that name the puppet.
    std::string named() const { return "process " + std::to_string(puppet.pid()) + " (puppet): "; }
    // Goes on until it is so, for as long as a machine that is busy may take.
    static bool soon(Session& session, const std::function<bool()>& is_so) {
        const auto end = Clock::now() + std::chrono::seconds(30);
        while (!is_so()) {
            if (Clock::now() > end || !session.run_for(std::chrono::milliseconds(10))) return false;
        }
        return true;
    }
    // Whether a call counts at once.
    bool is_counted(Session& session, const std::string& name) {
        const uint64_t before = hits(session.snapshot());
        puppet.call(name);
        return hits(session.snapshot()) == before + 1;
    }
    size_t warnings_with(const std::string& text) const {
        size_t found = 0;
        for (const std::string& warning : warnings)
            found += warning.find(text) != std::string::npos;
        return found;
    }
};

TEST_F(SessionFaults, CountsAreWholeWhenABatchFailsOnce) {
    const auto session = attach("+exe:work_push delay=0\n+exe:work_nop delay=0\n");
    session->arm();
    uint64_t calls = 0;
    for (const int error : {ENOMEM, EINTR, EAGAIN, ENOSPC}) {
        puppet.call("work_push");
        puppet.call("work_nop");
        calls += 2;
        faults().batch.begin(1, 1, error);
        const Snapshot snapshot = session->snapshot();
        EXPECT_EQ(hits(snapshot), calls) << error;
        EXPECT_FALSE(snapshot.counts_are_old);
        EXPECT_GE(faults().batch.calls, 2);
    }
    EXPECT_THAT(warnings, testing::IsEmpty());
}

TEST_F(SessionFaults, CountsThatCannotBeReadAreThoseReadLast) {
    const auto session = attach("+exe:work_push delay=0\n");
    session->arm();
    puppet.call("work_push");
    EXPECT_EQ(hits(session->snapshot()), 1u);
    for (size_t episode = 1; episode <= 2; ++episode) {
        const uint64_t before = hits(session->snapshot());
        puppet.call("work_push");
        faults().batch.begin(1, kForEver, ENOMEM);
        for (int i = 0; i < 3; ++i) {
            const Snapshot snapshot = session->snapshot();
            EXPECT_EQ(hits(snapshot), before);
            EXPECT_TRUE(snapshot.counts_are_old);
            EXPECT_FALSE(session->counts());
        }
        EXPECT_EQ(warnings_with("read the counters: Cannot allocate memory"), episode);
        faults().batch.end();
        const Snapshot snapshot = session->snapshot();
        EXPECT_EQ(hits(snapshot), before + 1);
        EXPECT_FALSE(snapshot.counts_are_old);
    }
}

// Those of processes that end meanwhile are neither dropped nor counted twice.
TEST_F(SessionFaults, CountsOfTheDeadOutliveAFailure) {
    const auto session = attach("+exe:work_push delay=0\n");
    session->arm();
    puppet.send("births 20 work_push");
    puppet.hear();
    faults().batch.begin(1, kForEver, EFAULT);
    for (int i = 0; i < 3; ++i) {
        ASSERT_TRUE(session->run_for(std::chrono::milliseconds(20)));
        (void)session->snapshot(); // what it does is looked at below
    }
    faults().batch.end();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(hits(session->snapshot()), 20u);
}

// The one probe that is to come fails, and only once: who is not slowed is named, and is soon.
TEST_F(SessionFaults, AMemberThatCannotBeProbedIsNamedAndTriedAgain) {
    const auto session = attach("+libslowlib.so:lib_work delay=0\n");
    session->arm();
    faults().link.begin(1, 1, ENOMEM);
    puppet.load_library();
    EXPECT_TRUE(soon(*session, [&] { return warnings_with(named() + "attach 1 probes") == 1; }));
    EXPECT_TRUE(soon(*session, [&] { return is_counted(*session, "lib_work"); }));
    EXPECT_THAT(warnings, testing::SizeIs(1));
}

TEST_F(SessionFaults, AFailureThatLastsIsToldOnce) {
    const auto session = attach("+libslowlib.so:lib_work delay=0\n");
    session->arm();
    faults().link.begin(1, kForEver, EMFILE);
    puppet.load_library();
    EXPECT_TRUE(soon(*session, [&] { return faults().link.calls >= 3; }));
    EXPECT_EQ(warnings_with(named() + "attach 1 probes: Too many open files"), 1u);
    faults().link.end();
    EXPECT_TRUE(soon(*session, [&] { return is_counted(*session, "lib_work"); }));
    EXPECT_THAT(warnings, testing::SizeIs(1));
}

TEST_F(SessionFaults, AFileThatCannotBeProbedForAllIsNamedAndStaysProbed) {
    auto outsider = std::make_unique<Puppet>();
    const auto session = attach("+exe:work_push delay=0\n");
    session->arm();
    faults().link.begin(1, 1, ENOMEM);
    outsider.reset();
    EXPECT_TRUE(soon(*session, [&] {
        return warnings_with(
                   "/puppet for all its processes at once: attach 1 probes: "
                   "Cannot allocate memory") == 1;
    }));
    EXPECT_TRUE(is_counted(*session, "work_push"));
}

TEST_F(SessionFaults, AMemberThatLosesItsProbesToNarrowingIsNamedAndTriedAgain) {
    const auto session = attach("+exe:work_push delay=0\n");
    session->arm();
    faults().link.begin(1, 1, ENOMEM);
    Puppet outsider;
    EXPECT_TRUE(soon(*session, [&] { return warnings_with(named() + "attach 1 probes") == 1; }));
    EXPECT_TRUE(soon(*session, [&] { return is_counted(*session, "work_push"); }));
}

TEST_F(SessionFaults, NewFunctionsOfAFileThatCannotBeProbedAreTriedAgain) {
    const Copies copies;
    puppet.exec(copies.first());
    const auto session = attach("+exe:work_push delay=0\n+*/second:work_nop delay=0\n");
    session->arm();
    Puppet outsider;
    outsider.exec(copies.first()); // the file stays narrow
    ASSERT_TRUE(session->run_for(std::chrono::milliseconds(50)));
    faults().link.begin(1, 1, ENOMEM);
    puppet.exec(copies.second());
    EXPECT_TRUE(soon(*session, [&] { return warnings_with("attach 1 probes: Cannot") == 1; }));
    EXPECT_TRUE(soon(*session, [&] { return is_counted(*session, "work_nop"); }));
    EXPECT_TRUE(is_counted(*session, "work_push"));
}

TEST_F(SessionFaults, WhatIsRefusedWhenPutBackIsListed) {
    const auto session = attach("+exe:work_push delay=0\n");
    session->arm();
    const auto listed = [&] {
        size_t found = 0;
        for (const SkippedTarget& skipped : session->snapshot().skipped)
            found += skipped.name == "work_push" &&
                     skipped.reason.find("Invalid argument") != std::string::npos;
        return found;
    };
    session->take_out(false, {});
    faults().link.begin(1, 1, EINVAL);
    ASSERT_TRUE(session->put_back());
    EXPECT_EQ(listed(), 1u);
    session->take_out(false, {});
    faults().link.begin(1, 1, ENOMEM);
    const auto put = session->put_back();
    ASSERT_FALSE(put);
    EXPECT_EQ(put.error().error_number, ENOMEM);
    ASSERT_TRUE(session->put_back());
    EXPECT_TRUE(is_counted(*session, "work_push"));
}

TEST_F(SessionFaults, AMappedFileThatCannotBeOpenedIsToldAndTriedAgain) {
    const auto session = attach("+libslowlib.so:lib_work delay=0\n");
    session->arm();
    faults().open.begin(1, kForEver, EMFILE);
    puppet.load_library();
    EXPECT_TRUE(soon(*session, [&] {
        return warnings_with(named()) == 1 && warnings_with("Too many open files") == 1;
    }));
    faults().open.end();
    EXPECT_TRUE(soon(*session, [&] { return is_counted(*session, "lib_work"); }));
    EXPECT_THAT(warnings, testing::SizeIs(1));
    EXPECT_TRUE(session->snapshot().skipped.empty());
}

TEST_F(SessionFaults, AFileThatCannotBeOpenedAtFirstIsRefusedWithTheReason) {
    faults().open.begin(1, kForEver, EMFILE);
    try {
        attach("+exe:work_push delay=0\n");
        FAIL() << "attached";
    } catch (const std::runtime_error& error) {
        EXPECT_NE(std::string(error.what()).find("Too many open files"), std::string::npos)
            << error.what();
    }
}

// SPEEDBUMP_WITHOUT for the sessions that are attached in this scope.
class Without {
  public:
    explicit Without(const char* what) { setenv("SPEEDBUMP_WITHOUT", what, 1); }
    Without(const Without&) = delete;
    Without& operator=(const Without&) = delete;
    ~Without() { unsetenv("SPEEDBUMP_WITHOUT"); }
};

// A tests/programs/forkstorm, and what it says in the end.
class Storm {
  public:
    explicit Storm(const std::string& arguments) {
        const std::string path = std::getenv("SPEEDBUMP_PROGRAMS") + std::string("/forkstorm ");
        int in[2];
        int out[2];
        if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
            throw std::runtime_error("pipe");
        pid_ = fork();
        if (pid_ == 0) {
            dup2(in[0], STDIN_FILENO);
            dup2(out[1], STDOUT_FILENO);
            execl("/bin/sh", "sh", "-c", ("exec " + path + arguments).c_str(),
                  static_cast<char*>(nullptr));
            _exit(127);
        }
        close(in[0]);
        close(out[1]);
        to_ = in[1];
        from_ = fdopen(out[0], "r");
        int ready = 0;
        if (std::fscanf(from_, "ready%n", &ready) != 0 || ready == 0)
            throw std::runtime_error("the storm does not begin");
    }
    Storm(const Storm&) = delete;
    Storm& operator=(const Storm&) = delete;
    ~Storm() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        close(to_);
        std::fclose(from_);
    }

    pid_t pid() const { return pid_; }
    int output() const { return fileno(from_); }
    // First it stops forking, then it measures.
    void next() {
        if (write(to_, "\n", 1) != 1) throw std::runtime_error("write");
    }
    // How many processes it had in the end, and how many of them were not slowed.
    std::pair<int, int> outcome() {
        int alive = 0;
        int fast = 0;
        if (std::fscanf(from_, "%d %d", &alive, &fast) != 2)
            throw std::runtime_error("the storm has failed");
        return {alive, fast};
    }

  private:
    pid_t pid_ = -1;
    int to_ = -1;
    std::FILE* from_ = nullptr;
};

TEST_F(SessionFaults, NobodyIsMissedWhereEventsAreLost) {
    const Without ring("ring");
    uint64_t lost = 0;
    for (const char* const arguments : {"4 20 900", "16 20 900"}) {
        SCOPED_TRACE(arguments);
        Storm storm(arguments);
        const auto session = attach("+exe:work_push delay=1ms\n", storm.pid());
        session->arm();
        storm.next();
        (void)session->run_for(std::chrono::seconds(5), storm.output());
        storm.next();
        (void)session->run_for(std::chrono::seconds(60), storm.output()); // until it says so
        const auto [alive, fast] = storm.outcome();
        EXPECT_GT(alive, 0);
        EXPECT_EQ(fast, 0) << "of " << alive;
        lost += session->snapshot().lost_events;
    }
    EXPECT_GT(lost, 0u);
    EXPECT_GT(warnings_with("looking at all of it again"), 0u);
}

// A process of this program with children that call called_by_family() all the time.
class Family {
  public:
    static constexpr int kChildren = 24;

    Family() {
        if (pipe2(ends_, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
        const pid_t own = getpid();
        pid_ = fork();
        if (pid_ == 0) {
            end_with(own);
            signal(SIGCHLD, SIG_IGN);
            char byte = 0;
            if (read(ends_[0], &byte, 1) != 1) _exit(1);
            const pid_t root = getpid();
            for (int i = 0; i < kChildren; ++i)
                if (fork() == 0) call(root);
            for (;;) pause();
        }
    }
    Family(const Family&) = delete;
    Family& operator=(const Family&) = delete;
    ~Family() {
        kill(pid_, SIGKILL); // its children go as well
        waitpid(pid_, nullptr, 0);
        close(ends_[0]);
        close(ends_[1]);
    }

    pid_t pid() const { return pid_; }
    void grow() {
        if (write(ends_[1], "", 1) != 1) throw std::runtime_error("write");
    }
    // Whether all children are there.
    bool is_grown() const {
        const std::string pid = std::to_string(pid_);
        std::ifstream file("/proc/" + pid + "/task/" + pid + "/children");
        return std::distance(std::istream_iterator<int>(file), {}) == kChildren;
    }

  private:
    // Whoever is killed, by a time limit too: nobody is left.
    static void end_with(pid_t parent) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1); // it had ended before
    }
    [[noreturn]] static void call(pid_t parent) {
        end_with(parent);
        for (;;) {
            called_by_family();
            usleep(1000);
        }
    }

    int ends_[2] = {};
    pid_t pid_ = -1;
};

// Maps this program, and is no descendant of it.
class Stranger {
  public:
    Stranger() {
        int ends[2] = {};
        if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
        const pid_t child = fork();
        if (child == 0) {
            if (fork() != 0) _exit(0);
            close(ends[1]);
            char byte = 0;
            _exit(read(ends[0], &byte, 1) == 0 ? 0 : 1);
        }
        close(ends[0]);
        end_ = ends[1];
        waitpid(child, nullptr, 0);
    }
    Stranger(const Stranger&) = delete;
    Stranger& operator=(const Stranger&) = delete;
    ~Stranger() { close(end_); }

  private:
    int end_ = -1; // it goes when nobody has it
};

TEST_F(SessionFaults, WhatThisProgramForksForItselfIsNoOutsider) {
    Family family;
    family.grow();
    const auto session = attach("+exe:called_by_family delay=0\n", family.pid());
    ASSERT_TRUE(session->run_for(std::chrono::seconds(1))); // on a busy host it goes on looking
    session->take_out(false, {});
    faults().link.begin(0, 0, 0);
    ASSERT_TRUE(session->put_back());
    EXPECT_EQ(faults().link.calls, 1); // for all at once
    EXPECT_EQ(warnings_with("outside the tree"), 0u);
}

TEST_F(SessionFaults, ManyProcessesAreProbedByOneChildAndARefusedOneOnceMore) {
    const Stranger stranger;
    Family family;
    family.grow();
    const auto end = Clock::now() + std::chrono::seconds(30);
    while (!family.is_grown() && Clock::now() < end) usleep(1000);
    const auto session = attach("+exe:called_by_family delay=0\n", family.pid());
    session->arm();
    session->take_out(false, {});
    faults().link.begin(2, 2, ENOMEM);
    ASSERT_TRUE(session->put_back());
    EXPECT_EQ(faults().link.calls, Family::kChildren + 2);
    EXPECT_EQ(faults().link.callers, 2);
    EXPECT_TRUE(soon(*session, [&] {
        std::set<pid_t> pids;
        for (const engine::Counts& counts : session->snapshot().counts)
            if (counts.hits > 0) pids.insert(counts.process);
        return pids.size() == Family::kChildren;
    }));
}

TEST_F(SessionFaults, WhoFoundNoRoomInTheTableIsSlowedOnceThereIsSome) {
    const Without members("members");
    Family family;
    const auto session = attach("+exe:called_by_family delay=0\n", family.pid());
    session->arm();
    family.grow();
    const auto counted = [&session] {
        std::set<pid_t> pids;
        for (const engine::Counts& counts : session->snapshot().counts)
            if (counts.hits > 0) pids.insert(counts.process);
        return pids;
    };
    EXPECT_TRUE(soon(*session, [&] { return warnings_with("Argument list too long") == 1; }));
    ASSERT_TRUE(soon(*session, [&] { return counted().size() == kFamilyRoom; }));
    const std::set<pid_t> first = counted();
    for (const pid_t pid : first) kill(pid, SIGKILL);
    EXPECT_TRUE(soon(*session, [&] { return counted().size() == Family::kChildren; }));
    EXPECT_GT(session->snapshot().lost_members, 0u);
    EXPECT_EQ(warnings_with("processes in it were lost"), 1u);
}

} // namespace
} // namespace speedbump::session

// What the linker calls in the place of the real ones; these names are its.
extern "C" {

int __real_bpf_map_lookup_batch(int fd, void* in, void* out, void* keys, void* values, __u32* count,
                                const bpf_map_batch_opts* options);
int __wrap_bpf_map_lookup_batch(int fd, void* in, void* out, void* keys, void* values, __u32* count,
                                const bpf_map_batch_opts* options) {
    if (const int error = speedbump::session::faults().batch.next(); error != 0) {
        *count = 0;
        errno = error;
        return -error;
    }
    return __real_bpf_map_lookup_batch(fd, in, out, keys, values, count, options);
}

int __real_bpf_link_create(int program, int target, bpf_attach_type type,
                           const bpf_link_create_opts* options);
int __wrap_bpf_link_create(int program, int target, bpf_attach_type type,
                           const bpf_link_create_opts* options) {
    if (type == BPF_TRACE_UPROBE_MULTI)
        if (const int error = speedbump::session::faults().link.next(); error != 0) return -error;
    return __real_bpf_link_create(program, target, type, options);
}

int __real_open(const char* path, int flags, mode_t mode);
int __wrap_open(const char* path, int flags, mode_t mode) {
    const std::string_view name(path);
    if (name.find("/map_files/") != std::string_view::npos || name.ends_with("/root"))
        if (const int error = speedbump::session::faults().open.next(); error != 0) {
            errno = error;
            return -1;
        }
    return __real_open(path, flags, mode);
}
}
