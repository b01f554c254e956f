// SPDX-License-Identifier: MIT
// The parts of getting into an interpreter that need no target.
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "inject/bootstrap.h"
#include "inject/payload.h"
#include "inject/process_state.h"
#include "inject/safe_point.h"
#include "process/threads.h"

namespace speedbump::inject {
namespace {

using process::RemoteMemory;

// A call site: the bytes of a syscall instruction, and the address behind it.
const unsigned char kCallSite[] = {0x0f, 0x05, 0x90};

user_regs_struct interrupted_call(uint64_t number, int64_t result) {
    user_regs_struct regs = {};
    regs.rip = reinterpret_cast<uint64_t>(kCallSite) + 2;
    regs.orig_rax = number;
    regs.rax = static_cast<uint64_t>(result);
    regs.cs = 0x33;
    return regs;
}

Resumption resume(const user_regs_struct& regs, uint64_t waited_ms = 0) {
    auto resumption = resumption_of(RemoteMemory(getpid()), regs, waited_ms);
    EXPECT_TRUE(resumption.has_value());
    return resumption.value_or(Resumption{});
}

TEST(Resumption, UserCodeStaysWhereItIs) {
    user_regs_struct regs = interrupted_call(0, 17);
    regs.orig_rax = ~0ULL;
    Resumption resumption = resume(regs);
    EXPECT_EQ(resumption.regs.rip, regs.rip);
    EXPECT_EQ(resumption.regs.rax, 17u);
    EXPECT_EQ(resumption.repeat, kRepeatNothing);
}

TEST(Resumption, AnInterruptedCallIsIssuedAgain) {
    constexpr int64_t kErestartSys = -512;
    user_regs_struct regs = interrupted_call(SYS_accept4, kErestartSys);
    Resumption resumption = resume(regs);
    EXPECT_EQ(resumption.regs.rip, regs.rip - 2);
    EXPECT_EQ(resumption.regs.rax, static_cast<uint64_t>(SYS_accept4));
    EXPECT_EQ(resumption.mode, kResumeFrame);
    EXPECT_EQ(resumption.repeat, kRepeatUnlessSignal);
}

TEST(Resumption, NoHandCallsYieldToAnyHandler) {
    EXPECT_EQ(resume(interrupted_call(SYS_pselect6, -514)).repeat, kRepeatUnlessAnySignal);
    EXPECT_EQ(resume(interrupted_call(SYS_read, -513)).repeat, kRepeatNothing);
}

TEST(Resumption, RelativeSleepsGoOnInTheKernelsOwnRestart) {
    user_regs_struct regs = interrupted_call(SYS_poll, -516);
    Resumption resumption = resume(regs);
    EXPECT_EQ(resumption.mode, kResumeRestart);
    EXPECT_EQ(resumption.regs.rip, regs.rip - 2);
    EXPECT_EQ(resumption.regs.rax, static_cast<uint64_t>(SYS_restart_syscall));
}

TEST(Resumption, EpollWaitsOnlyForTheTimeThatIsLeft) {
    user_regs_struct regs = interrupted_call(SYS_epoll_wait, -EINTR);
    regs.r10 = 1500;
    EXPECT_EQ(resume(regs, 600).regs.r10, 900u);
    EXPECT_EQ(resume(regs, 1503).regs.r10, 0u);
    // Longer than it may: the clock was another CPU's, and nothing is known.
    EXPECT_EQ(resume(regs, 2000).regs.r10, 1500u);
    // Let go at once, the kernel decides: -ERESTARTNOHAND.
    ASSERT_TRUE(resume(regs, 400).released);
    EXPECT_EQ(resume(regs, 400).released->r10, 1100u);
    EXPECT_EQ(static_cast<int64_t>(resume(regs, 400).released->rax), -514);
    regs.r10 = 0xffffffff; // -1: for ever
    EXPECT_EQ(resume(regs, 600).regs.r10, 0xffffffffu);
}

TEST(Resumption, RefusesWhatIsNoSyscallInstruction) {
    user_regs_struct regs = interrupted_call(SYS_read, -512);
    regs.rip += 1;
    EXPECT_FALSE(resumption_of(RemoteMemory(getpid()), regs, 0));
}

TEST(SafePoints, FutexesOfGlibcAreNotSafe) {
    EXPECT_FALSE(SafePoints::blocks_safely(SYS_futex, FUTEX_WAIT | FUTEX_PRIVATE_FLAG));
    EXPECT_TRUE(SafePoints::blocks_safely(
        SYS_futex, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME));
    EXPECT_TRUE(SafePoints::blocks_safely(SYS_epoll_wait, 0));
    EXPECT_FALSE(SafePoints::blocks_safely(SYS_mmap, 0));
    EXPECT_FALSE(SafePoints::blocks_safely(SYS_execve, 0));
}

class SafePointsHere : public testing::Test {
  protected:
    SafePointsHere() : modules_(process::load_modules(getpid())) {}
    void SetUp() override { ASSERT_TRUE(modules_) << modules_.error().message; }

    Result<std::vector<process::RemoteModule>> modules_;
};

TEST_F(SafePointsHere, OwnCodeIsSafeAndLibcIsNot) {
    SafePoints points(RemoteMemory(getpid()), *modules_);
    user_regs_struct regs = {};
    regs.cs = 0x33;
    regs.orig_rax = ~0ULL;
    uint64_t stack[4] = {};
    regs.rsp = reinterpret_cast<uint64_t>(stack);
    regs.rip = reinterpret_cast<uint64_t>(&resume);
    // With a sanitizer the executable is an allocator: it exports malloc.
    bool allocator = false;
    for (const auto& module : *modules_)
        if (module.contains_code(regs.rip)) allocator = module.find("malloc").has_value();
    EXPECT_EQ(points.judge(regs), allocator ? Stand::kUnsafe : Stand::kUserCode);
    for (const auto& module : *modules_) {
        if (module.soname() != "libc.so.6") continue;
        regs.rip = *module.find("munmap");
        EXPECT_EQ(points.judge(regs), Stand::kUnsafe);
    }
    regs.rip = reinterpret_cast<uint64_t>(stack); // no module's code
    EXPECT_EQ(points.judge(regs), Stand::kUnsafe);
    regs.cs = 0x23; // 32-bit code
    regs.rip = reinterpret_cast<uint64_t>(&resume);
    EXPECT_EQ(points.judge(regs), Stand::kUnsafe);
}

SafePoints* g_points;
bool g_inside;
bool g_outside;

bool frame_above(const void* here) {
    auto address = reinterpret_cast<uint64_t>(here);
    return g_points->has_signal_frame(address, address + 64 * 1024);
}

void on_signal(int) {
    char here = 0;
    g_inside = frame_above(&here);
}

TEST_F(SafePointsHere, SeesALiveSignalHandler) {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "the handler allocates, at which the thread sanitizer takes offence";
#endif
    SafePoints points(RemoteMemory(getpid()), *modules_);
    g_points = &points;
    // A thread's stack is new: nothing is left on it of earlier handlers.
    std::thread([] {
        char here = 0;
        g_outside = frame_above(&here);
        signal(SIGUSR1, on_signal);
        pthread_kill(pthread_self(), SIGUSR1);
        signal(SIGUSR1, SIG_DFL);
    }).join();
    EXPECT_FALSE(g_outside);
    EXPECT_TRUE(g_inside);
}

TEST(Payload, FitsItsPlaces) {
    EXPECT_GT(stub_bytes().size, 64u);
    EXPECT_LT(stub_bytes().size, 1024u);
    EXPECT_LE(payload_bytes().size, kDataOffset);
    EXPECT_LT(borrowed_offset(), payload_bytes().size);
    EXPECT_LT(thread_offset(), payload_bytes().size);
    EXPECT_GE(stub_bytes().data, payload_bytes().data);
    EXPECT_LT(sizeof(Region), kRegionSize - kDataOffset - 64 * 1024);
}

TEST(Bootstrap, CarriesAnyPath) {
    std::string source = bootstrap_source("/a'b\\c\xff\n", "x");
    EXPECT_NE(source.find("b'\\x2f\\x61\\x27\\x62\\x5c\\x63\\xff\\x0a'"), std::string::npos);
    EXPECT_LT(source.size() + 4 * PATH_MAX - 4 * 9, kMaxSource + 8192);
}

TEST(Bootstrap, ReadsAnswers) {
    EXPECT_TRUE(read_bootstrap_answer("{\"op\":\"loaded\"}"));
    auto refused = read_bootstrap_answer("{\"op\":\"error\",\"message\":\"ImportError: no\"}");
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("ImportError: no"), std::string::npos);
    EXPECT_FALSE(read_bootstrap_answer("{\"op\":3}"));
    EXPECT_FALSE(read_bootstrap_answer("{\"op\":\"error\",\"message\":[1]}"));
    EXPECT_FALSE(read_bootstrap_answer("\xff"));
    EXPECT_FALSE(read_bootstrap_answer(""));
}

TEST(ProcessState, OfThisProcess) {
    auto status = read_status(getpid(), getpid());
    ASSERT_TRUE(status);
    EXPECT_EQ(status->state, 'R');
    EXPECT_EQ(status->tracer, 0);
    auto age = read_age(getpid());
    ASSERT_TRUE(age);
    EXPECT_LT(*age, std::chrono::seconds(60));
    EXPECT_FALSE(read_status(0x3ffffff, 0x3ffffff));
    EXPECT_FALSE(read_age(0x3ffffff));
    EXPECT_TRUE(process::read_threads(0x3ffffff).empty());
    EXPECT_FALSE(obstacle(getpid()));
}

TEST(ProcessState, BlockedMaskAndCall) {
    pid_t child = fork();
    if (child == 0) {
        // Not getpid() of a name with spaces and brackets for nothing: /proc/PID/stat has both.
        prctl(PR_SET_NAME, "a) R 1 (b");
        sigset_t mask;
        sigemptyset(&mask);
        sigaddset(&mask, SIGUSR2);
        sigprocmask(SIG_SETMASK, &mask, nullptr);
        for (;;) pause();
    }
    std::optional<BlockedCall> call;
    for (int i = 0; i < 1000 && (!call || call->number != SYS_pause); ++i) {
        usleep(1000);
        call = read_blocked_call(child, child);
    }
    ASSERT_TRUE(call);
    EXPECT_EQ(call->number, SYS_pause);
    EXPECT_NE(call->program_counter, 0u);
    auto status = read_status(child, child);
    ASSERT_TRUE(status);
    EXPECT_EQ(status->blocked_signals, 1u << (SIGUSR2 - 1));
    auto age = read_age(child);
    ASSERT_TRUE(age);
    EXPECT_LT(*age, std::chrono::seconds(30));

    kill(child, SIGSTOP);
    int wait_status = 0;
    ASSERT_EQ(waitpid(child, &wait_status, WUNTRACED), child);
    auto stopped = obstacle(child);
    ASSERT_TRUE(stopped);
    EXPECT_NE(stopped->message.find("stopped by a signal"), std::string::npos);
    EXPECT_NE(stopped->hint.find("kill -CONT"), std::string::npos);

    kill(child, SIGKILL);
    siginfo_t info;
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
    auto zombie = obstacle(child);
    ASSERT_TRUE(zombie);
    EXPECT_NE(zombie->message.find("zombie"), std::string::npos);
    waitpid(child, nullptr, 0);
    auto gone = obstacle(child);
    ASSERT_TRUE(gone);
    EXPECT_EQ(gone->kind, ErrorKind::kNotFound);
}

} // namespace
} // namespace speedbump::inject
