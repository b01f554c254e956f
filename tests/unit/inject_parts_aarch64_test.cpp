// SPDX-License-Identifier: MIT
// The parts of getting into an interpreter that are of aarch64. What a stopped thread looks like
// only a kernel shows: tests/vm.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "inject/address_space.h"
#include "inject/frame.h"
#include "inject/payload.h"
#include "inject/safe_point.h"
#include "inject/stopped.h"

// test_enter(pc, sp, argument): goes there as a thread that was redirected does, and comes back
// from test_landing, which keeps what all registers hold when it is entered.
extern "C" {
struct Captured {
    uint64_t general[31];
    uint64_t sp, nzcv, fpcr, fpsr;
    unsigned char vectors[512];
};
Captured test_captured;
uint64_t test_saved[24];
void test_enter(uint64_t pc, uint64_t sp, uint64_t argument);
extern const char test_landing[];
}
static_assert(offsetof(Captured, sp) == 248 && offsetof(Captured, vectors) == 280);
asm(R"(
    .text
    .globl test_enter
    .type test_enter, %function
test_enter:
    adrp x9, test_saved
    add x9, x9, :lo12:test_saved
    stp x19, x20, [x9]
    stp x21, x22, [x9, #16]
    stp x23, x24, [x9, #32]
    stp x25, x26, [x9, #48]
    stp x27, x28, [x9, #64]
    stp x29, x30, [x9, #80]
    mov x10, sp
    str x10, [x9, #96]
    stp d8, d9, [x9, #104]
    stp d10, d11, [x9, #120]
    stp d12, d13, [x9, #136]
    stp d14, d15, [x9, #152]
    mov x16, x0
    mov sp, x1
    mov x0, x2
    br x16
    .globl test_landing
    .type test_landing, %function
test_landing:
    stp x0, x1, [sp, #-16]!
    adrp x0, test_captured
    add x0, x0, :lo12:test_captured
    stp x2, x3, [x0, #16]
    stp x4, x5, [x0, #32]
    stp x6, x7, [x0, #48]
    stp x8, x9, [x0, #64]
    stp x10, x11, [x0, #80]
    stp x12, x13, [x0, #96]
    stp x14, x15, [x0, #112]
    stp x16, x17, [x0, #128]
    stp x18, x19, [x0, #144]
    stp x20, x21, [x0, #160]
    stp x22, x23, [x0, #176]
    stp x24, x25, [x0, #192]
    stp x26, x27, [x0, #208]
    stp x28, x29, [x0, #224]
    str x30, [x0, #240]
    ldp x2, x3, [sp], #16
    stp x2, x3, [x0]
    mov x2, sp
    mrs x3, nzcv
    stp x2, x3, [x0, #248]
    mrs x2, fpcr
    mrs x3, fpsr
    stp x2, x3, [x0, #264]
    add x0, x0, #280
    .irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    str q\n, [x0], #16
    .endr
    msr fpcr, xzr
    adrp x9, test_saved
    add x9, x9, :lo12:test_saved
    ldp x19, x20, [x9]
    ldp x21, x22, [x9, #16]
    ldp x23, x24, [x9, #32]
    ldp x25, x26, [x9, #48]
    ldp x27, x28, [x9, #64]
    ldp x29, x30, [x9, #80]
    ldr x10, [x9, #96]
    ldp d8, d9, [x9, #104]
    ldp d10, d11, [x9, #120]
    ldp d12, d13, [x9, #136]
    ldp d14, d15, [x9, #152]
    mov sp, x10
    ret
)");

namespace speedbump::inject {
namespace {

using process::RemoteMemory;

constexpr uint32_t kNop = 0xd503201f;
constexpr uint32_t kSvc = 0xd4000001;
const uint32_t kCallSite[] = {kNop, kSvc, kNop};
const uint64_t kCall = reinterpret_cast<uint64_t>(kCallSite) + 4;

Stopped interrupted(long number, int64_t error, std::array<uint64_t, 6> arguments = {}) {
    Stopped stopped;
    BlockedCall call;
    call.number = number;
    std::copy(arguments.begin(), arguments.end(), call.arguments);
    std::copy(arguments.begin(), arguments.end(), stopped.regs.regs);
    call.program_counter = kCall + kCallSize;
    stopped.regs.regs[8] = static_cast<uint64_t>(number);
    stopped.regs.pc = error == -EINTR ? kCall + kCallSize : kCall;
    if (error == -EINTR) stopped.regs.regs[0] = static_cast<uint64_t>(-EINTR);
    stopped.call = call;
    stopped.error = error;
    return stopped;
}

Resumption resume(const Stopped& stopped, uint64_t waited_ms = 0) {
    const auto resumption = resumption_of(RemoteMemory(getpid()), stopped, waited_ms);
    EXPECT_TRUE(resumption.has_value());
    return resumption.value_or(Resumption{});
}

TEST(Resumption, UserCodeStaysWhereItIs) {
    Stopped stopped;
    stopped.regs.pc = 4096;
    stopped.regs.regs[0] = 17;
    const Resumption resumption = resume(stopped);
    EXPECT_EQ(resumption.regs.pc, 4096u);
    EXPECT_EQ(resumption.regs.regs[0], 17u);
    EXPECT_EQ(resumption.repeat, kRepeatNothing);
}

TEST(Resumption, AnInterruptedCallIsIssuedAgain) {
    const Resumption resumption = resume(interrupted(SYS_accept4, -512, {5, 6}));
    EXPECT_EQ(resumption.regs.pc, kCall);
    EXPECT_EQ(resumption.regs.regs[0], 5u);
    EXPECT_EQ(resumption.number, SYS_accept4);
    EXPECT_EQ(resumption.mode, kResumeFrame);
    EXPECT_EQ(resumption.repeat, kRepeatUnlessSignal);
    EXPECT_EQ(resume(interrupted(SYS_ppoll, -514)).repeat, kRepeatUnlessAnySignal);
}

TEST(Resumption, RelativeSleepsGoOnInTheKernelsOwnRestart) {
    const Resumption resumption = resume(interrupted(SYS_nanosleep, -516));
    EXPECT_EQ(resumption.mode, kResumeRestart);
    EXPECT_EQ(resumption.regs.pc, kCall);
    EXPECT_EQ(resumption.regs.regs[8], static_cast<uint64_t>(SYS_restart_syscall));
    EXPECT_EQ(resumption.repeat, kRepeatNothing);
}

TEST(Resumption, EpollWaitsOnlyForTheTimeThatIsLeft) {
    const Stopped stopped = interrupted(SYS_epoll_pwait, -EINTR, {7, 0, 0, 1500});
    EXPECT_EQ(resume(stopped, 600).regs.regs[3], 900u);
    EXPECT_EQ(resume(stopped, 1503).regs.regs[3], 0u);
    EXPECT_EQ(resume(stopped).regs.regs[0], 7u);
    EXPECT_EQ(resume(stopped).regs.pc, kCall);
    // Let go at once it is in its call again, too.
    ASSERT_TRUE(resume(stopped, 400).released);
    EXPECT_EQ(resume(stopped, 400).released->regs[3], 1100u);
    EXPECT_EQ(resume(stopped, 400).released->pc, kCall);
    const Stopped for_ever = interrupted(SYS_epoll_pwait, -EINTR, {7, 0, 0, 0xffffffff});
    EXPECT_EQ(resume(for_ever, 600).regs.regs[3], 0xffffffffu);
    EXPECT_FALSE(resume(for_ever).time_left);
}

TEST(Resumption, KnowsWhereTheRestOfATimeIs) {
    EXPECT_FALSE(resume(interrupted(SYS_pselect6, -514)).time_left);
    ASSERT_TRUE(resume(interrupted(SYS_pselect6, -514, {0, 0, 0, 0, 4096})).time_left);
    EXPECT_EQ(resume(interrupted(SYS_pselect6, -514, {0, 0, 0, 0, 4096})).time_left->address,
              4096u);
    EXPECT_EQ(resume(interrupted(SYS_ppoll, -514, {0, 0, 8192})).time_left->address, 8192u);
    EXPECT_EQ(
        resume(interrupted(SYS_epoll_pwait, -EINTR, {7, 0, 0, 700})).time_left.value().address,
        kTimeInRegister);
}

TEST(Resumption, RefusesWhatIsNoCallAndWhatMustNotBeIssuedAgain) {
    Stopped stopped = interrupted(SYS_read, -512);
    stopped.call->program_counter += 4;
    EXPECT_FALSE(resumption_of(RemoteMemory(getpid()), stopped, 0));
    EXPECT_FALSE(resumption_of(RemoteMemory(getpid()), interrupted(SYS_read, -EINTR), 0));
    EXPECT_TRUE(resumption_of(RemoteMemory(getpid()), interrupted(SYS_epoll_pwait2, -EINTR), 0));
}

TEST(Start, BeginsWithNoBranchTypeAndKeepsTheRest) {
    user_regs_struct regs{};
    regs.pstate = 0xa0001c00; // N, C, SSBS and a branch type
    regs.regs[30] = 30;
    const user_regs_struct start = start_at(regs, 4096, 8192, 3);
    EXPECT_EQ(start.pc, 4096u);
    EXPECT_EQ(start.sp, 8192u);
    EXPECT_EQ(start.regs[0], 3u);
    EXPECT_EQ(start.regs[30], 30u);
    EXPECT_EQ(start.pstate, 0xa0001000u);
}

TEST(SafePoints, NothingThatIsUnclearOrOf32Bits) {
    const std::vector<process::RemoteModule> none;
    const SafePoints points(RemoteMemory(getpid()), none);
    Stopped stopped = stopped_of({});
    EXPECT_TRUE(stopped.is_64_bit);
    stopped.is_unclear = true;
    user_regs_struct other{};
    other.pstate = 0x10;
    EXPECT_FALSE(stopped_of(other).is_64_bit);
    for (const bool has_made_a_call : {false, true}) {
        EXPECT_EQ(points.judge(stopped, has_made_a_call), Stand::kUnsafe);
        EXPECT_EQ(points.judge(stopped_of(other), has_made_a_call), Stand::kUnsafe);
    }
}

// A frame that brings registers of known values to test_landing, on a stack of its own.
class Frames : public testing::Test {
  protected:
    static constexpr size_t kStackSize = 128 * 1024;

    Frames() : stack_(kStackSize) {
        for (uint64_t i = 0; i < 31; ++i) regs_.regs[i] = 0x0123456789abcd00 + i;
        regs_.sp = (reinterpret_cast<uint64_t>(stack_.data()) + kStackSize - 4096) & ~uint64_t{15};
        regs_.pc = reinterpret_cast<uint64_t>(test_landing);
        regs_.pstate = 0xa0000000;
        const uint32_t head[] = {0x46508001, 528, 1 /* fpsr */, 3 << 22 /* fpcr */};
        state_.bytes.resize(528 + 16);
        std::memcpy(state_.bytes.data(), head, sizeof(head));
        for (size_t i = sizeof(head); i < 528; ++i)
            state_.bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
    }

    Image make(ResumeMode mode, const Block& common) {
        Resumption resumption;
        resumption.regs = regs_;
        resumption.mode = mode;
        sigset_t now;
        sigprocmask(SIG_SETMASK, nullptr, &now);
        uint64_t mask = 0;
        std::memcpy(&mask, &now, sizeof(mask));
        const Image image = make_image(resumption, state_, mask, common);
        std::memcpy(reinterpret_cast<void*>(image.start), image.bytes.data(), image.bytes.size());
        return image;
    }

    // `first`: which registers of the frame are the call's own.
    void expect_brought_back(std::initializer_list<int> own = {}) const {
        for (int i = 0; i < 31; ++i) {
            if (std::find(own.begin(), own.end(), i) != own.end()) continue;
            EXPECT_EQ(test_captured.general[i], regs_.regs[i]) << "x" << i;
        }
        EXPECT_EQ(test_captured.sp, regs_.sp);
        EXPECT_EQ(test_captured.nzcv, regs_.pstate);
        EXPECT_EQ(test_captured.fpcr, 3u << 22);
        EXPECT_EQ(test_captured.fpsr, 1u);
        EXPECT_EQ(std::memcmp(test_captured.vectors, state_.bytes.data() + 16, 512), 0);
    }

    std::vector<std::byte> stack_;
    user_regs_struct regs_{};
    ExtendedState state_;
};

// rt_sigreturn, as the stub issues it.
extern "C" const char test_sigreturn[];
asm(R"(
    .globl test_sigreturn
test_sigreturn:
    mov x8, #139
    svc #0
    brk #0
)");

TEST_F(Frames, BringAllRegistersBack) {
    Block common{};
    common.code_size = (payload_bytes().size + 7) & ~size_t{7};
    const Image image = make(kResumeFrame, common);
    EXPECT_EQ(image.entry % 16, 0u);
    EXPECT_EQ(image.context % 16, 0u);
    EXPECT_LE(image.end, regs_.sp);
    EXPECT_LE(image.block + sizeof(Block), image.context - 128);
    std::memset(&test_captured, 0, sizeof(test_captured));
    test_enter(reinterpret_cast<uint64_t>(test_sigreturn), image.context - 128, 0);
    expect_brought_back();
}

TEST_F(Frames, AreNotTakenForAHandlers) {
    Block common{};
    common.code_size = (payload_bytes().size + 7) & ~size_t{7};
    const Image image = make(kResumeFrame, common);
    const std::vector<process::RemoteModule> none;
    const SafePoints points(RemoteMemory(getpid()), none);
    EXPECT_FALSE(points.has_signal_frame(image.start, image.end));
    // But for the mark it is one.
    const uint64_t zero = 0;
    std::memcpy(reinterpret_cast<void*>(image.context + 8), &zero, sizeof(zero));
    EXPECT_TRUE(points.has_signal_frame(image.start, image.end));
}

TEST_F(Frames, SayWhereTheRecordsAreForWhichTheyHaveNoRoom) {
    // As read_extended_state() makes it for vectors that are long.
    const uint32_t extra[] = {0x45585401, 32, 0, 0, 64, 0, 0, 0};
    state_.bytes.resize(528);
    state_.beyond = 528 + 8;
    const auto* bytes = reinterpret_cast<const std::byte*>(extra);
    state_.bytes.insert(state_.bytes.end(), bytes, bytes + sizeof(extra));
    state_.bytes.resize(state_.bytes.size() + 16 + 64);
    Block common{};
    common.code_size = (payload_bytes().size + 7) & ~size_t{7};
    const Image image = make(kResumeFrame, common);
    const uint64_t records = image.context + 464;
    uint64_t told = 0;
    std::memcpy(&told, reinterpret_cast<void*>(records + state_.beyond), sizeof(told));
    EXPECT_EQ(told, records + 528 + 32 + 16); // behind the record and an end
}

// This thread is borrowed by itself: the stub runs, and the new thread waits for its go in vain.
class Borrowed : public Frames, public testing::WithParamInterface<ResumeMode> {
  protected:
    static uint64_t address_of(const void* function) {
        return reinterpret_cast<uint64_t>(function);
    }

    // What is there, if it is mapped.
    static std::optional<uint32_t> peek(const volatile uint32_t* place) {
        int pipes[2];
        if (pipe(pipes) != 0) return std::nullopt;
        uint32_t value = 0;
        const bool is_there =
            write(pipes[1], const_cast<const uint32_t*>(place), sizeof(value)) == sizeof(value) &&
            read(pipes[0], &value, sizeof(value)) == sizeof(value);
        close(pipes[0]);
        close(pipes[1]);
        return is_there ? std::optional(value) : std::nullopt;
    }

    Block common() {
        void* hole = mmap(nullptr, kRegionSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(hole, kRegionSize);
        Block block{};
        block.region = address_of(hole);
        block.code_size = (payload_bytes().size + 7) & ~size_t{7};
        block.all_signals = ~uint64_t{0};
        block.borrowed = borrowed_offset();
        block.thread_entry = thread_offset();
        block.pthread_create = address_of(reinterpret_cast<void*>(&pthread_create));
        block.pthread_attr_init = address_of(reinterpret_cast<void*>(&pthread_attr_init));
        block.pthread_attr_setstacksize =
            address_of(reinterpret_cast<void*>(&pthread_attr_setstacksize));
        block.munmap = address_of(reinterpret_cast<void*>(&munmap));
        block.pthread_self = address_of(reinterpret_cast<void*>(&pthread_self));
        block.pthread_detach = address_of(reinterpret_cast<void*>(&pthread_detach));
        block.errno_location = address_of(reinterpret_cast<void*>(&__errno_location));
        return block;
    }
};

TEST_P(Borrowed, GoesBackByItselfAndLeavesAThread) {
    std::vector<std::byte> alternate(64 * 1024);
    stack_t own{};
    own.ss_sp = alternate.data();
    own.ss_size = alternate.size();
    ASSERT_EQ(sigaltstack(&own, nullptr), 0);
    const Block block = common();
    const Image image = make(GetParam(), block);
    // Where code may be, as in the padding of a text segment.
    const Bytes stub = stub_bytes();
    void* place = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::memcpy(place, stub.data, stub.size);
    ASSERT_EQ(mprotect(place, 4096, PROT_READ | PROT_EXEC), 0);
    __builtin___clear_cache(static_cast<char*>(place), static_cast<char*>(place) + stub.size);
    std::memset(&test_captured, 0, sizeof(test_captured));

    test_enter(address_of(place), image.entry, image.block);

    if (GetParam() == kResumeRestart) {
        expect_brought_back({0, 8}); // of restart_syscall: nothing, and its number
        EXPECT_EQ(test_captured.general[8], static_cast<uint64_t>(SYS_restart_syscall));
    } else {
        expect_brought_back();
    }
    const auto& after = *reinterpret_cast<const Block*>(image.block);
    EXPECT_EQ(after.error, 0);
    sigset_t mask;
    sigprocmask(SIG_SETMASK, nullptr, &mask);
    EXPECT_EQ(sigismember(&mask, SIGUSR1), 0);
    stack_t now{};
    ASSERT_EQ(sigaltstack(nullptr, &now), 0);
    EXPECT_EQ(now.ss_sp, own.ss_sp);
    EXPECT_EQ(now.ss_flags, 0);

    const auto* region = reinterpret_cast<const volatile Region*>(block.region + kDataOffset);
    const auto state = [&] { return peek(&region->state); };
    for (int i = 0; i < 5000 && state() == kRegionEmpty; ++i) usleep(1000);
    ASSERT_EQ(state(), kRegionWaiting);
    EXPECT_EQ(region->magic, kRegionMagic);
    EXPECT_NE(region->thread_id, 0u);
    close(region->our_fd); // nobody will give it its go
    for (int i = 0; i < 5000 && state(); ++i) usleep(1000);
    EXPECT_FALSE(state()) << "the region is still there";
    own.ss_flags = SS_DISABLE;
    sigaltstack(&own, nullptr);
    munmap(place, 4096);
}

INSTANTIATE_TEST_SUITE_P(Inject, Borrowed, testing::Values(kResumeFrame, kResumeRestart));

const SafePoints* g_points;
bool g_inside;
bool g_outside;

bool frame_above(const void* here) {
    const auto address = reinterpret_cast<uint64_t>(here);
    return g_points->has_signal_frame(address, address + 64 * 1024);
}

TEST(SafePoints, SeesALiveSignalHandler) {
    const std::vector<process::RemoteModule> none;
    const SafePoints points(RemoteMemory(getpid()), none);
    g_points = &points;
    // A thread's stack is new: nothing is left on it of earlier handlers.
    std::thread([] {
        g_outside = frame_above(__builtin_frame_address(0));
        signal(SIGUSR1, [](int) { g_inside = frame_above(__builtin_frame_address(0)); });
        pthread_kill(pthread_self(), SIGUSR1);
        signal(SIGUSR1, SIG_DFL);
    }).join();
    EXPECT_FALSE(g_outside);
    EXPECT_TRUE(g_inside);
}

TEST(AddressSpace, KnowsWhereAThreadsStackBegins) {
    static uint64_t pointer;
    static uint64_t thread_block;
    constexpr size_t kSize = 256 * 1024;
    std::vector<char> block(3 * kSize);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, block.data() + kSize, kSize);
    pthread_t thread;
    ASSERT_EQ(pthread_create(
                  &thread, &attributes,
                  [](void*) -> void* {
                      pointer = reinterpret_cast<uint64_t>(__builtin_frame_address(0));
                      thread_block = pthread_self();
                      return nullptr;
                  },
                  nullptr),
              0);
    pthread_join(thread, nullptr);
    const auto floor =
        AddressSpace(getpid()).stack_floor(RemoteMemory(getpid()), pointer, thread_block);
    ASSERT_TRUE(floor);
    EXPECT_EQ(*floor, reinterpret_cast<uint64_t>(block.data()) + kSize);
}

// Of a program that is linked to an address, whose heap begins right behind it.
TEST(Holes, LieBetweenTheHeapAndTheMappings) {
    const std::vector<AddressSpace::Range> ranges = {{0x400000, 0xaa4000, false, false},
                                                     {0xb00000, 0xc00000, true, false},
                                                     {0xffff80000000, 0xffff90000000, false, false},
                                                     {0xfffff0000000, 0xfffff0021000, true, true}};
    const AddressSpace space(ranges, 8 << 20);
    for (int i = 0; i < 100; ++i) {
        const uint64_t hole = space.choose_hole(kRegionSize);
        EXPECT_GT(hole, 0x100000000u);
        EXPECT_LT(hole + kRegionSize, 0xffff00000000u);
    }
}

TEST(Payload, FitsItsPlaces) {
    EXPECT_GT(stub_bytes().size, 64u);
    EXPECT_LT(stub_bytes().size, 1024u);
    EXPECT_LE(payload_bytes().size, kDataOffset);
    EXPECT_LT(borrowed_offset(), payload_bytes().size);
    EXPECT_LT(thread_offset(), payload_bytes().size);
    EXPECT_LT(sizeof(Region), kRegionSize - kDataOffset - 64 * 1024);
}

} // namespace
} // namespace speedbump::inject
