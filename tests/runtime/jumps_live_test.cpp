// SPDX-License-Identifier: MIT
// Jumps put into a program that makes it hard (tests/programs/tormented) and taken out again, over
// and over: no result is wrong, no byte stays changed, no memory stays. SPEEDBUMP_CYCLES: how
// often.
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "engine/inprocess/open.h"
#include "inject/fire.h"
#include "inject/left_stub.h"
#include "inject/mapper_payload.h"
#include "inject/seccomp_filter.h"
#include "inject/target_lock.h"
#include "live.h"
#include "process/maps.h"
#include "process/memory.h"
#include "process/resolver.h"
#include "tree/polled_tree.h"

namespace speedbump::engine::inprocess {
namespace {

using namespace std::chrono_literals;

size_t cycles() {
    const char* asked = std::getenv("SPEEDBUMP_CYCLES");
    return asked == nullptr ? 20 : std::stoul(asked);
}

Result<bool> remove_stub(pid_t pid) {
    const auto turn = inject::Turn::take(pid, Clock::now() + 10s);
    if (!turn) return turn.error();
    return inject::remove_left_stub(*turn, Clock::now() + 10s);
}

size_t open_descriptors() {
    size_t count = 0;
    for (const auto& one : std::filesystem::directory_iterator("/proc/self/fd"))
        count += !one.path().empty();
    return count;
}

// What a program's jumps are put in and taken out of.
class Torment {
  public:
    explicit Torment(const std::string& mode) : program_("tormented") {
        program_.send("begin " + mode);
        program_.hear();
    }

    pid_t pid() const { return program_.pid(); }
    // How many results there were; 0: one of them was wrong.
    uint64_t right_results() {
        program_.send("check");
        const std::string answer = program_.hear();
        return answer.starts_with("right ") ? std::stoull(answer.substr(6)) : 0;
    }
    // All that is executable, of whatever file.
    std::vector<char> code() const {
        std::vector<char> all;
        const auto mappings = process::read_maps(pid());
        for (const process::Mapping& one : *mappings) {
            if (!one.executable) continue;
            std::vector<char> there(one.end - one.start);
            process::RemoteMemory(pid()).read_some(one.start, there.data(), there.size());
            all.insert(all.end(), there.begin(), there.end());
        }
        return all;
    }
    size_t left_mappings() const {
        std::ifstream maps("/proc/" + std::to_string(pid()) + "/maps");
        size_t count = 0;
        for (std::string line; std::getline(maps, line);)
            count += line.find("/memfd:speedbump-") != std::string::npos;
        return count;
    }

  private:
    session::Puppet program_;
};

class Engine : public testing::Test {
  protected:
    void SetUp() override {
        if (geteuid() != 0) GTEST_SKIP() << "needs root";
        auto engine = open(0, [this](const std::string& text) { warnings.push_back(text); });
        if (!engine && engine.error().kind == ErrorKind::kUnsupported)
            GTEST_SKIP() << engine.error().message;
        ASSERT_TRUE(engine) << engine.error().message;
        engine_ = std::move(*engine);
    }

    std::vector<std::string> warnings;
    std::unique_ptr<InprocessProbes> engine_;
};
class Jumps : public Engine, public testing::WithParamInterface<const char*> {};

// A process that traces another one, as a debugger does, until it is told to end.
class Tracer {
  public:
    explicit Tracer(pid_t pid) {
        int ends[2];
        if (pipe(ends) != 0) std::abort();
        tracer_ = fork();
        if (tracer_ == 0) {
            const bool traces = ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0;
            if (write(ends[1], traces ? "1" : "0", 1) != 1) _exit(1);
            for (;;) pause();
        }
        char answer = '0';
        if (read(ends[0], &answer, 1) != 1 || answer != '1') ADD_FAILURE() << "it does not trace";
        close(ends[0]);
        close(ends[1]);
    }
    ~Tracer() { end(); }
    void end() {
        if (tracer_ == 0) return;
        kill(tracer_, SIGKILL);
        waitpid(tracer_, nullptr, 0);
        tracer_ = 0;
    }

  private:
    pid_t tracer_ = 0;
};

// Jumps in a program that works, which somebody else traces when they are to be taken out.
class Left : public Engine {
  protected:
    void SetUp() override {
        Engine::SetUp();
        if (IsSkipped() || HasFatalFailure()) return;
        engine_->follow(tree_);
        ASSERT_TRUE(tree_.add_member(static_cast<uint32_t>(torment_.pid()), 1));
        const auto parsed = targets::parse_targets("+exe:hot_*", "targets.txt");
        elf::PlacementOptions placement;
        placement.jump = true;
        process::Resolver resolver(parsed.file, placement);
        const auto found = resolver.look_at_process(torment_.pid());
        ASSERT_TRUE(found) << found.error().message;
        std::vector<Probe> probes;
        for (const process::NativeMatch& match : found->matches) {
            const auto target = static_cast<uint32_t>(probes.size());
            ASSERT_TRUE(engine_->configure(target, {}, 0, {}));
            probes.push_back(
                {target, match.site.file_offset, match.site.kind, match.site.return_distance});
        }
        before_ = torment_.code();
        std::vector<RefusedProbe> refused;
        auto attached = engine_->attach({resolver.descriptor(*found->files.begin()), probes},
                                        torment_.pid(), refused);
        ASSERT_TRUE(attached) << attached.error().message;
        EXPECT_NE(torment_.code(), before_);
        Tracer tracer(torment_.pid());
        std::vector<Attached> all;
        all.push_back(std::move(*attached));
        engine_->release(std::move(all));
        ASSERT_EQ(warnings.size(), 1u);
        EXPECT_NE(warnings[0].find("is traced by"), std::string::npos) << warnings[0];
        EXPECT_NE(torment_.code(), before_);
    }
    bool is_out() const { return torment_.code() == before_ && torment_.left_mappings() == 0; }
    void expect_to_be_out() {
        EXPECT_TRUE(is_out());
        EXPECT_GT(torment_.right_results(), 0u);
    }

    Torment torment_{"loop"};
    tree::PolledTree tree_{[](pid_t) { return true; }};
    std::vector<char> before_;
};

TEST_F(Left, AreTakenOutLaterByTheSession) {
    for (int i = 0; i < 3000 && !is_out(); ++i, std::this_thread::sleep_for(10ms))
        engine_->handle_events();
    expect_to_be_out();
}

TEST_F(Left, AreTakenOutByTheHeirOnceTheSessionIsOver) {
    engine_.reset();
    for (int i = 0; i < 3000 && !is_out(); ++i) std::this_thread::sleep_for(10ms);
    expect_to_be_out();
}

TEST_P(Jumps, ComeAndGoWhileItWorks) {
    Torment torment(GetParam());
    tree::PolledTree tree([](pid_t) { return true; });
    engine_->follow(tree);
    ASSERT_TRUE(tree.add_member(static_cast<uint32_t>(torment.pid()), 1));

    const targets::ParseOutcome parsed = targets::parse_targets("+exe:hot_*", "targets.txt");
    elf::PlacementOptions placement;
    placement.jump = true;
    process::Resolver resolver(parsed.file, placement);
    const auto found = resolver.look_at_process(torment.pid());
    ASSERT_TRUE(found) << found.error().message;
    ASSERT_EQ(found->files.size(), 1u);
    // Of the others it is the compiler's choice.
    for (const char* name : {"hot_thunk", "hot_mix", "hot_leaf", "hot_short", "hot_float"})
        ASSERT_TRUE(std::any_of(found->matches.begin(), found->matches.end(),
                                [name](const auto& match) { return match.name == name; }))
            << name;
    const int file = resolver.descriptor(*found->files.begin());
    std::vector<Probe> probes;
    for (const process::NativeMatch& match : found->matches) {
        const auto target = static_cast<uint32_t>(probes.size());
        TargetSettings settings;
        settings.delay = 1us;
        if (target % 3 == 1) settings.thread = targets::Pattern{"tormen?ed*", true};
        if (target % 3 == 2) settings.caller = targets::Pattern{"*", true};
        ASSERT_TRUE(engine_->configure(target, settings, 0, {}));
        probes.push_back(
            {target, match.site.file_offset, match.site.kind, match.site.return_distance});
    }

    const auto mappings = process::read_maps(torment.pid());
    ASSERT_TRUE(mappings);
    const auto code = std::find_if(mappings->begin(), mappings->end(),
                                   [](const auto& one) { return one.executable; });
    const auto is_as_the_file_has_it = [&] {
        std::vector<char> there(code->end - code->start), expected(there.size());
        const process::RemoteMemory memory(torment.pid());
        const auto size =
            pread(file, expected.data(), expected.size(), static_cast<off_t>(code->file_offset));
        return memory.read_some(code->start, there.data(), there.size()) == there.size() &&
               std::equal(expected.begin(), expected.begin() + size, there.begin());
    };
    ASSERT_TRUE(is_as_the_file_has_it());

    std::random_device seed;
    std::mt19937 draw(seed());
    engine_->arm(true);
    uint64_t results = torment.right_results();
    size_t descriptors = 0;
    for (size_t i = 0; i < cycles(); ++i) {
        std::vector<RefusedProbe> refused;
        auto attached = engine_->attach({file, probes}, torment.pid(), refused);
        ASSERT_TRUE(attached) << i << ": " << attached.error().message;
        ASSERT_TRUE(refused.empty()) << i << ": " << refused[0].reason;
        std::this_thread::sleep_for(std::chrono::microseconds(draw() % 2000));
        // Some calls are to be counted, however seldom it has a CPU.
        for (int k = 0; i == 0 && k < 10000 && torment.right_results() == results; ++k)
            std::this_thread::sleep_for(1ms);
        std::vector<Attached> all;
        all.push_back(std::move(*attached));
        engine_->release(std::move(all));
        ASSERT_TRUE(warnings.empty()) << i << ": " << warnings[0];
        ASSERT_TRUE(is_as_the_file_has_it()) << i;
        ASSERT_EQ(torment.left_mappings(), 0u) << i;
        if (i == 0) descriptors = open_descriptors();
        if (i % 20 != 0) continue;
        const uint64_t before = results;
        for (int k = 0; k < 1000 && results == before; ++k, std::this_thread::sleep_for(1ms))
            results = torment.right_results();
        ASSERT_GT(results, before) << i << ": a result is wrong, or nothing goes on";
    }
    EXPECT_LE(open_descriptors(), descriptors + 4); // files of callers, each once
    const auto counts = engine_->read_counts();
    ASSERT_TRUE(counts);
    EXPECT_FALSE(counts->empty());
    std::printf("%zu cycles, %llu results\n", cycles(), static_cast<unsigned long long>(results));
}

// A loader that is killed with its stub in the padding behind the code of a process that never
// waits.
TEST(LeftStub, IsTakenOutOnceNobodyIsInIt) {
    if (geteuid() != 0) GTEST_SKIP() << "needs root";
    Torment torment("loop");
    const std::vector<char> before = torment.code();
    const pid_t loader = fork();
    if (loader == 0) {
        const auto modules = process::load_modules(torment.pid());
        if (!modules) _exit(1);
        const auto fire = inject::Fire::prepare(torment.pid(), *modules,
                                                {inject::mapper_offset(), &inject::mapper_calls()});
        kill(getpid(), fire ? SIGKILL : SIGTERM);
    }
    int status = 0;
    waitpid(loader, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    EXPECT_NE(torment.code(), before);
    bool is_out = false;
    for (int i = 0; i < 100 && !is_out; ++i, std::this_thread::sleep_for(1ms)) {
        const auto removed = remove_stub(torment.pid());
        ASSERT_TRUE(removed) << removed.error().message;
        is_out = *removed;
    }
    EXPECT_TRUE(is_out);
    EXPECT_EQ(torment.code(), before);
    EXPECT_GT(torment.right_results(), 0u);
    EXPECT_TRUE(*remove_stub(torment.pid())) << "there is none";
}

INSTANTIATE_TEST_SUITE_P(Modes, Jumps,
                         testing::Values("loop", "threads", "crowd", "alarm", "altstack", "nested",
                                         "throw", "longjmp", "context", "fork", "vfork", "spawn",
                                         "library", "sleep"),
                         [](const auto& one) { return std::string(one.param); });

} // namespace
} // namespace speedbump::engine::inprocess
