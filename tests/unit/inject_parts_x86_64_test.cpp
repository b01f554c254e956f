// SPDX-License-Identifier: MIT
// The parts of getting into an interpreter that need no target.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "inject/address_space.h"
#include "inject/blocking_call.h"
#include "inject/bootstrap.h"
#include "inject/frame.h"
#include "inject/machine.h"
#include "inject/payload.h"
#include "inject/process_state.h"
#include "inject/safe_point.h"
#include "inject/stopped.h"
#include "process/threads.h"

namespace speedbump::inject {
namespace {

using process::RemoteMemory;

// A call site: the bytes of a syscall instruction, and the address after it.
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
    auto resumption = resumption_of(RemoteMemory(getpid()), stopped_of(regs), waited_ms);
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
    // Let go at once, the kernel decides: -ERESTARTNOHAND.
    ASSERT_TRUE(resume(regs, 400).released);
    EXPECT_EQ(resume(regs, 400).released->r10, 1100u);
    EXPECT_EQ(static_cast<int64_t>(resume(regs, 400).released->rax), -514);
    regs.r10 = 0xffffffff; // -1: for ever
    EXPECT_EQ(resume(regs, 600).regs.r10, 0xffffffffu);
}

TEST(Resumption, KnowsWhereTheRestOfATimeIs) {
    constexpr int64_t kErestartNoHand = -514;
    user_regs_struct regs = interrupted_call(SYS_pselect6, kErestartNoHand);
    EXPECT_FALSE(resume(regs).time_left); // no time-out
    regs.r8 = 4096;
    ASSERT_TRUE(resume(regs).time_left);
    EXPECT_EQ(resume(regs).time_left->address, 4096u);
    EXPECT_EQ(resume(regs).time_left->unit_ns, 1u);
    regs.orig_rax = SYS_select;
    EXPECT_EQ(resume(regs).time_left->unit_ns, 1000u);
    regs.orig_rax = SYS_pause;
    EXPECT_FALSE(resume(regs).time_left);
    regs = interrupted_call(SYS_epoll_wait, -EINTR);
    regs.r10 = 700;
    ASSERT_TRUE(resume(regs).time_left);
    EXPECT_EQ(resume(regs).time_left->address, kTimeInRegister);
    regs.r10 = 0xffffffff; // -1: for ever
    EXPECT_FALSE(resume(regs).time_left);
}

TEST(Resumption, RefusesWhatIsNoSyscallInstruction) {
    user_regs_struct regs = interrupted_call(SYS_read, -512);
    regs.rip += 1;
    EXPECT_FALSE(resumption_of(RemoteMemory(getpid()), stopped_of(regs), 0));
}

TEST(Resumption, OnlyWhatIsOnTheListIsIssuedAgainAfterEintr) {
    for (long number = 0; number < 500; ++number) {
        const bool again = number == SYS_epoll_wait || number == SYS_epoll_pwait ||
                           number == SYS_epoll_pwait2 || number == SYS_rt_sigtimedwait;
        EXPECT_EQ(may_be_issued_again(number), again) << number;
        const user_regs_struct regs = interrupted_call(static_cast<uint64_t>(number), -EINTR);
        EXPECT_EQ(resumption_of(RemoteMemory(getpid()), stopped_of(regs), 0).has_value(), again)
            << number;
    }
    // What has moved data is no interrupted call.
    EXPECT_EQ(resume(interrupted_call(SYS_recvfrom, 4)).regs.rax, 4u);
}

class Interruptions : public testing::Test {
  protected:
    void SetUp() override {
        ASSERT_TRUE(self_.valid());
        ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets_), 0);
    }
    void TearDown() override {
        close(sockets_[0]);
        close(sockets_[1]);
    }
    Interruption judge(long number, std::initializer_list<uint64_t> arguments = {}) {
        BlockedCall call;
        call.number = number;
        std::copy(arguments.begin(), arguments.end(), call.arguments);
        return judge_interruption(getpid(), self_.get(), call);
    }
    Fd self_{static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0))};
    int sockets_[2] = {-1, -1};
};

TEST_F(Interruptions, FutexesOfGlibcAreItsLocks) {
    EXPECT_EQ(judge(SYS_futex, {0, FUTEX_WAIT | FUTEX_PRIVATE_FLAG}), Interruption::kHarmful);
    EXPECT_EQ(judge(SYS_futex, {0, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME}),
              Interruption::kHarmless);
}

TEST_F(Interruptions, WhatIsNotOnTheListIsHarmful) {
    for (long number : {SYS_mmap, SYS_execve, SYS_close, SYS_write, SYS_sendto, SYS_connect,
                        SYS_recvmmsg, SYS_semtimedop, SYS_msgrcv, SYS_fcntl, SYS_io_getevents})
        EXPECT_EQ(judge(number), Interruption::kHarmful) << number;
    EXPECT_EQ(judge(SYS_poll), Interruption::kHarmless);
}

TEST_F(Interruptions, OfEpollByItsTime) {
    EXPECT_EQ(judge(SYS_epoll_wait, {0, 0, 0, 700}), Interruption::kRelativeTime);
    EXPECT_EQ(judge(SYS_epoll_wait, {0, 0, 0, 0xffffffff}), Interruption::kHarmless);
    EXPECT_EQ(judge(SYS_epoll_pwait2, {0, 0, 0, 0}), Interruption::kHarmless);
    EXPECT_EQ(judge(SYS_epoll_pwait2, {0, 0, 0, 4096}), Interruption::kHarmful);
}

TEST_F(Interruptions, OfWaitsForSignalsWithoutEnd) {
    EXPECT_EQ(judge(SYS_rt_sigtimedwait, {0, 0, 0, 8}), Interruption::kHarmless);
    EXPECT_EQ(judge(SYS_rt_sigtimedwait, {0, 0, 4096, 8}), Interruption::kHarmful);
    user_regs_struct regs = interrupted_call(SYS_rt_sigtimedwait, -EINTR);
    regs.r10 = 8; // the size of the set, no time
    EXPECT_FALSE(resume(regs).time_left);
    EXPECT_EQ(resume(regs).regs.r10, 8u);
}

TEST_F(Interruptions, OfReceivesByFlagsAndSocket) {
    const auto socket = static_cast<uint64_t>(sockets_[0]);
    EXPECT_EQ(judge(SYS_recvfrom, {socket, 0, 8, 0}), Interruption::kHarmless);
    EXPECT_EQ(judge(SYS_recvfrom, {socket, 0, 8, MSG_WAITALL}), Interruption::kHarmful);
    EXPECT_EQ(judge(SYS_recvmsg, {socket, 0, MSG_WAITALL}), Interruption::kHarmful);
    EXPECT_EQ(judge(SYS_read, {socket}), Interruption::kHarmless);
    const int lowest = 8;
    ASSERT_EQ(setsockopt(sockets_[0], SOL_SOCKET, SO_RCVLOWAT, &lowest, sizeof(lowest)), 0);
    EXPECT_EQ(judge(SYS_read, {socket}), Interruption::kHarmful);
    const auto other = static_cast<uint64_t>(sockets_[1]);
    const timeval limit{5, 0};
    ASSERT_EQ(setsockopt(sockets_[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    EXPECT_EQ(judge(SYS_recvfrom, {other, 0, 8, 0}), Interruption::kHarmful);
    EXPECT_EQ(judge(SYS_accept4, {other}), Interruption::kHarmful);
    EXPECT_EQ(judge(SYS_accept4, {socket}), Interruption::kHarmless);
    EXPECT_EQ(judge(SYS_accept4, {999999}), Interruption::kHarmful);
}

TEST_F(Interruptions, OfReadsByFile) {
    int pipes[2];
    ASSERT_EQ(pipe(pipes), 0);
    EXPECT_EQ(judge(SYS_read, {static_cast<uint64_t>(pipes[0])}), Interruption::kHarmless);
    const Fd event(eventfd(0, 0));
    EXPECT_EQ(judge(SYS_read, {static_cast<uint64_t>(event.get())}), Interruption::kHarmless);
    const Fd zeros(open("/dev/zero", O_RDONLY));
    EXPECT_EQ(judge(SYS_read, {static_cast<uint64_t>(zeros.get())}), Interruption::kHarmful);
    EXPECT_EQ(judge(SYS_read, {static_cast<uint64_t>(self_.get())}), Interruption::kHarmful);
    const Fd file(open("/proc/self/exe", O_RDONLY));
    EXPECT_EQ(judge(SYS_read, {static_cast<uint64_t>(file.get())}), Interruption::kHarmful);
    int terminal = -1, program = -1;
    ASSERT_EQ(openpty(&terminal, &program, nullptr, nullptr, nullptr), 0);
    EXPECT_EQ(judge(SYS_read, {static_cast<uint64_t>(program)}), Interruption::kHarmless);
    termios modes{};
    tcgetattr(program, &modes);
    modes.c_lflag &= ~static_cast<tcflag_t>(ICANON);
    modes.c_cc[VMIN] = 8;
    tcsetattr(program, TCSANOW, &modes);
    EXPECT_EQ(judge(SYS_read, {static_cast<uint64_t>(program)}), Interruption::kHarmful);
    for (const int one : {terminal, program, pipes[0], pipes[1]}) close(one);
}

TEST(RestartableSequence, IsTheOneThatItsAreaNames) {
    const pid_t child = fork();
    if (child == 0)
        for (;;) pause();
    struct {
        uint32_t version, flags;
        uint64_t begin, length, abort;
    } sequence{0, 0, 4096, 32, 8192};
    struct {
        uint64_t area;
        uint32_t size, signature, flags, pad;
    } own{};
    ASSERT_EQ(ptrace(PTRACE_SEIZE, child, nullptr, nullptr), 0);
    ASSERT_EQ(ptrace(PTRACE_INTERRUPT, child, nullptr, nullptr), 0);
    ASSERT_EQ(waitpid(child, nullptr, __WALL), child);
    const RemoteMemory memory(child);
    EXPECT_FALSE(is_in_restartable_sequence(memory, child, 4100));
    const bool is_told = ptrace(static_cast<__ptrace_request>(0x420f), child, sizeof own, &own) > 0;
    if (is_told && own.area != 0) {
        // Its stack has room for it, and the area of its thread is as in this one.
        user_regs_struct regs{};
        ASSERT_EQ(ptrace(PTRACE_GETREGS, child, nullptr, &regs), 0);
        const uint64_t place = (regs.rsp - 4096) & ~uint64_t{31};
        const auto write = [child](uint64_t address, const void* data, size_t size) {
            iovec local{const_cast<void*>(data), size};
            iovec remote{reinterpret_cast<void*>(address), size};
            return process_vm_writev(child, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(size);
        };
        ASSERT_TRUE(write(place, &sequence, sizeof sequence));
        ASSERT_TRUE(write(own.area + 8, &place, sizeof place));
        for (const auto& [counter, is_in] :
             {std::pair{4095, false}, {4096, true}, {4127, true}, {4128, false}})
            EXPECT_EQ(is_in_restartable_sequence(memory, child, static_cast<uint64_t>(counter)),
                      is_in)
                << counter;
    }
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    if (!is_told || own.area == 0) GTEST_SKIP() << "no rseq area here, or the kernel does not tell";
}

TEST(AddressSpace, KnowsWhereStacksBegin) {
    const AddressSpace here(getpid());
    const RemoteMemory memory(getpid());
    // A stack in the middle of a mapping, as a program gives it to a thread.
    constexpr size_t kSize = 65536;
    std::vector<char> block(3 * kSize);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, block.data() + kSize, kSize);
    static uint64_t pointer;
    static uint64_t thread_block;
    pthread_t thread;
    ASSERT_EQ(pthread_create(
                  &thread, &attributes,
                  [](void*) -> void* {
                      // a variable may lie elsewhere under the address sanitizer
                      pointer = reinterpret_cast<uint64_t>(__builtin_frame_address(0));
                      thread_block = pthread_self();
                      return nullptr;
                  },
                  nullptr),
              0);
    pthread_join(thread, nullptr);
    const AddressSpace space(getpid());
    const auto floor = space.stack_floor(memory, pointer, thread_block);
    ASSERT_TRUE(floor);
    EXPECT_EQ(*floor, reinterpret_cast<uint64_t>(block.data()) + kSize);
    // On no stack of the thread's own.
    EXPECT_FALSE(
        space.stack_floor(memory, reinterpret_cast<uint64_t>(block.data()) + 100, thread_block));
    EXPECT_FALSE(space.stack_floor(memory, 4096, thread_block));
    // The main thread's may grow, but not into what lies below, and not over its limit.
    const uint64_t end = 0x7fffffff0000;
    const std::vector<AddressSpace::Range> ranges = {{0x1000, 0x2000, true, false},
                                                     {end - 0x20000, end, true, true}};
    EXPECT_EQ(AddressSpace(ranges, 0x800000).stack_floor(memory, end - 0x100, 0), end - 0x800000);
    EXPECT_EQ(AddressSpace(ranges, 0x1000).stack_floor(memory, end - 0x100, 0), end - 0x20000);
    EXPECT_EQ(AddressSpace(ranges, ~uint64_t{0}).stack_floor(memory, end - 0x100, 0),
              0x2000 + 256 * 4096u);
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
    EXPECT_EQ(points.judge(stopped_of(regs), false), allocator ? Stand::kUnsafe : Stand::kUserCode);
    for (const auto& module : *modules_) {
        if (module.soname() != "libc.so.6") continue;
        regs.rip = *module.find("munmap");
        EXPECT_EQ(points.judge(stopped_of(regs), false), Stand::kUnsafe);
        EXPECT_EQ(points.judge(stopped_of(regs), true), Stand::kBlockedCall);
    }
    for (const auto& module : *modules_) {
        if (module.soname() != "linux-vdso.so.1") continue;
        regs.rip = *module.find("__vdso_clock_gettime"); // as with an allocator's lock held
        EXPECT_EQ(points.judge(stopped_of(regs), false), Stand::kUnsafe);
    }
    regs.rip = reinterpret_cast<uint64_t>(stack); // no module's code
    EXPECT_EQ(points.judge(stopped_of(regs), false), Stand::kUnsafe);
    regs.cs = 0x23; // 32-bit code
    regs.rip = reinterpret_cast<uint64_t>(&resume);
    EXPECT_EQ(points.judge(stopped_of(regs), false), Stand::kUnsafe);
}

TEST(Stopped, AtTheEndOfACallItIsTold) {
    user_regs_struct regs = {};
    regs.cs = 0x33;
    regs.orig_rax = SYS_read;
    regs.rdi = 5;
    for (const int64_t result : {int64_t{0}, int64_t{100}, int64_t{-EAGAIN}}) {
        regs.rax = static_cast<uint64_t>(result);
        const Stopped stopped = stopped_of(regs);
        ASSERT_TRUE(stopped.made && !stopped.call) << result;
        EXPECT_EQ(stopped.made->number, SYS_read);
        EXPECT_EQ(stopped.made->arguments[0], 5u);
    }
    for (const int64_t result : {int64_t{-EINTR}, int64_t{-512}, int64_t{-516}}) {
        regs.rax = static_cast<uint64_t>(result);
        EXPECT_TRUE(stopped_of(regs).call && !stopped_of(regs).made) << result;
    }
    regs.rax = static_cast<uint64_t>(-ENOSYS); // as before the call
    EXPECT_FALSE(stopped_of(regs).made || stopped_of(regs).call);
    regs.rax = 0;
    regs.orig_rax = ~0ULL; // in no call
    EXPECT_FALSE(stopped_of(regs).made || stopped_of(regs).call);
}

TEST(CallOnStack, IsToldByNamesOfTheKernel) {
    using State = CallOnStack::State;
    const auto told = [](const char* text) { return call_on_stack(text); };
    EXPECT_EQ(told("").state, State::kNone);
    EXPECT_EQ(
        told("[<0>] irqentry_exit_to_user_mode+0x1\n[<0>] asm_sysvec_apic_timer_interrupt+0x1\n")
            .state,
        State::kNone);
    EXPECT_EQ(told("[<0>] exit_to_user_mode_loop+0x9e/0x1b0\n[<0>] do_syscall_64+0x1\n").state,
              State::kLeaving);
    const CallOnStack sleeps = told(
        "[<0>] hrtimer_nanosleep+0x8d/0x120\n"
        "[<0>] __x64_sys_clock_nanosleep+0xd0/0x150\n"
        "[<0>] do_syscall_64+0x82/0x700\n");
    EXPECT_EQ(sleeps.state, State::kInside);
    EXPECT_EQ(sleeps.number, SYS_clock_nanosleep);
    for (const char* name : {"read", "poll_me", "futex", "epoll_wait", "write"}) {
        const CallOnStack other = call_on_stack(
            fmt::format("[<0>] __x64_sys_{}+0xd0/0x150\n[<0>] do_syscall_64+0x82/0x700\n", name));
        EXPECT_EQ(other.state, State::kInside) << name;
        EXPECT_EQ(other.number, -1) << name;
    }
}

SafePoints* g_points;
bool g_inside;
bool g_outside;

bool frame_above(const void* here) {
    auto address = reinterpret_cast<uint64_t>(here);
    return g_points->has_signal_frame(address, address + 64 * 1024);
}

void on_signal(int) {
    g_inside = frame_above(__builtin_frame_address(0));
}

TEST_F(SafePointsHere, SeesALiveSignalHandler) {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "the handler allocates, at which the thread sanitizer takes offence";
#endif
    SafePoints points(RemoteMemory(getpid()), *modules_);
    g_points = &points;
    // A thread's stack is new: nothing is left on it of earlier handlers.
    std::thread([] {
        g_outside = frame_above(__builtin_frame_address(0));
        signal(SIGUSR1, on_signal);
        pthread_kill(pthread_self(), SIGUSR1);
        signal(SIGUSR1, SIG_DFL);
    }).join();
    EXPECT_FALSE(g_outside);
    EXPECT_TRUE(g_inside);
}

// test_enter(pc, stack, argument): goes there as a thread that was redirected does, and comes back
// from test_landing.
extern "C" {
uint64_t test_saved_stack;
void test_enter(uint64_t pc, uint64_t stack, uint64_t argument);
extern const char test_landing[];
}
asm(R"(
    .text
test_enter:
    push %rbx
    push %rbp
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, test_saved_stack(%rip)
    mov %rdi, %rax
    mov %rsi, %rsp
    mov %rdx, %rdi
    jmp *%rax
test_landing:
    mov test_saved_stack(%rip), %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbp
    pop %rbx
    ret
)");

std::optional<ExtendedState> state_of_a_child() {
    const pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
        raise(SIGSTOP);
        _exit(0);
    }
    waitpid(child, nullptr, 0);
    auto state = read_extended_state(child);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    return state;
}

// This thread is borrowed by itself, on a stack that ends soon: behind it nothing may be read. The
// new thread waits for its go in vain.
TEST(Borrowed, GoesBackFromAStackThatEndsSoon) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the sanitizers don't know the stack";
#endif
    const auto state = state_of_a_child();
    ASSERT_TRUE(state && state->can_be_restored);
    constexpr size_t kSize = 256 * 1024;
    constexpr size_t kPage = 4096;
    const auto address = [](auto* place) { return reinterpret_cast<uint64_t>(place); };
    auto* stack = static_cast<char*>(
        mmap(nullptr, kSize + 16 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_EQ(mprotect(stack, kSize, PROT_READ | PROT_WRITE), 0);
    void* hole = mmap(nullptr, kRegionSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(hole, kRegionSize);
    void* place = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::memcpy(place, stub_bytes().data, stub_bytes().size);
    ASSERT_EQ(mprotect(place, kPage, PROT_READ | PROT_EXEC), 0);

    Block block{};
    block.region = address(hole);
    block.code_size = (payload_bytes().size + 7) & ~size_t{7};
    block.all_signals = ~uint64_t{0};
    block.borrowed = borrowed_offset();
    block.thread_entry = thread_offset();
    block.pthread_create = address(&pthread_create);
    block.pthread_attr_init = address(&pthread_attr_init);
    block.pthread_attr_setstacksize = address(&pthread_attr_setstacksize);
    block.munmap = address(&munmap);
    block.pthread_self = address(&pthread_self);
    block.pthread_detach = address(&pthread_detach);
    block.errno_location = address(&__errno_location);
    Resumption resumption;
    resumption.mode = kResumeRestart;
    resumption.regs.rsp = address(stack) + kSize - 64;
    resumption.regs.rip = address(test_landing);
    const Image image = make_image(resumption, *state, 0, block);
    std::memcpy(reinterpret_cast<void*>(image.start), image.bytes.data(), image.bytes.size());

    test_enter(address(place), image.entry, image.block);

    EXPECT_EQ(reinterpret_cast<const Block*>(image.block)->error, 0);
    const auto* region = reinterpret_cast<const volatile Region*>(block.region + kDataOffset);
    const RemoteMemory memory(getpid());
    const auto now = [&] {
        return memory.value<uint32_t>(block.region + kDataOffset + offsetof(Region, state));
    };
    for (int i = 0; i < 5000 && now() == kRegionEmpty; ++i) usleep(1000);
    ASSERT_EQ(now(), kRegionWaiting);
    close(region->our_fd);
    for (int i = 0; i < 5000 && now(); ++i) usleep(1000);
    EXPECT_FALSE(now()) << "the region is still there";
    munmap(stack, kSize + 16 * kPage);
    munmap(place, kPage);
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
    std::string source = load_source("/a'b\\c\xff\n", "x");
    EXPECT_NE(source.find("b'\\x2f\\x61\\x27\\x62\\x5c\\x63\\xff\\x0a'"), std::string::npos);
    EXPECT_LT(source.size() + 4 * PATH_MAX - 4 * 9, kMaxSource + 8192);
}

TEST(Bootstrap, ReadsAnswers) {
    EXPECT_TRUE(read_bootstrap_answer("{\"op\":\"loaded\"}"));
    auto refused = read_bootstrap_answer("{\"op\":\"error\",\"message\":\"ImportError: no\"}");
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("ImportError: no"), std::string::npos);
    EXPECT_EQ(refused.error().kind, ErrorKind::kInvalid);
    refused = read_bootstrap_answer(
        "{\"op\":\"error\",\"message\":\"ImportError: /x.so: Permission denied\"}");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::kPermission);
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
