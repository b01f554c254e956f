// SPDX-License-Identifier: MIT
// The interpreter of seccomp filters, against the kernel's own.
#include "inject/seccomp_filter.h"

#include <gtest/gtest.h>
#include <linux/audit.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>

namespace speedbump::inject {
namespace {

constexpr uint32_t kErrno = SECCOMP_RET_ERRNO;
// No system call has this number: only the filter answers.
constexpr int kNoCall = 5000;

sock_filter step(uint32_t code, uint32_t k = 0, uint8_t jt = 0, uint8_t jf = 0) {
    return {static_cast<uint16_t>(code), jt, jf, k};
}

seccomp_data call_of(int number, std::initializer_list<uint64_t> arguments = {}) {
    seccomp_data call{};
    call.nr = number;
    call.arch = AUDIT_ARCH_X86_64;
    std::copy(arguments.begin(), arguments.end(), call.args);
    return call;
}

TEST(RunFilter, CompareAndReturn) {
    const Filter filter = {
        step(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        step(BPF_JMP | BPF_JEQ | BPF_K, 59, 0, 1),
        step(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        step(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    EXPECT_EQ(run_filter(filter, call_of(59)), SECCOMP_RET_KILL_PROCESS);
    EXPECT_EQ(run_filter(filter, call_of(60)), SECCOMP_RET_ALLOW);
}

TEST(RunFilter, DivisionByNothingEndsIt) {
    const Filter filter = {step(BPF_LDX | BPF_IMM, 0), step(BPF_ALU | BPF_DIV | BPF_X),
                           step(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    EXPECT_EQ(run_filter(filter, call_of(1)), 0u); // kills
}

TEST(RunFilter, WhatTheKernelWouldNotTakeIsNotUnderstood) {
    const seccomp_data call = call_of(1);
    EXPECT_FALSE(run_filter({}, call));
    EXPECT_FALSE(run_filter({step(BPF_LD | BPF_IMM, 1)}, call));                  // no return
    EXPECT_FALSE(run_filter({step(BPF_JMP | BPF_JA, 7), step(BPF_RET)}, call));   // too far
    EXPECT_FALSE(run_filter({step(BPF_JMP | BPF_JA, ~0U), step(BPF_RET)}, call)); // back
    EXPECT_FALSE(run_filter({step(BPF_LD | BPF_W | BPF_ABS, 64), step(BPF_RET)}, call));
    EXPECT_FALSE(run_filter({step(BPF_LD | BPF_W | BPF_ABS, 2), step(BPF_RET)}, call));
    EXPECT_FALSE(run_filter({step(BPF_LD | BPF_B | BPF_ABS, 0), step(BPF_RET)}, call));
    EXPECT_FALSE(run_filter({step(BPF_ST, 16), step(BPF_RET)}, call));
    EXPECT_FALSE(run_filter({step(BPF_ALU | BPF_MOD | BPF_K, 3), step(BPF_RET)}, call));
    EXPECT_FALSE(run_filter(Filter(5000, step(BPF_RET)), call));
}

// A program that the kernel accepts: any steps, and returns of an errno all over.
Filter random_filter(std::mt19937& random) {
    const auto below = [&](uint32_t limit) { return static_cast<uint32_t>(random() % limit); };
    const uint32_t calculations[] = {BPF_ADD, BPF_SUB, BPF_MUL, BPF_DIV, BPF_AND,
                                     BPF_OR,  BPF_XOR, BPF_LSH, BPF_RSH, BPF_NEG};
    const uint32_t comparisons[] = {BPF_JEQ, BPF_JGT, BPF_JGE, BPF_JSET};
    Filter filter;
    for (uint32_t i = 0; i < BPF_MEMWORDS; ++i) filter.push_back(step(BPF_ST, i));
    const size_t length = filter.size() + 3 + below(40);
    while (filter.size() < length) {
        const auto left = static_cast<uint32_t>(length - filter.size());
        const uint32_t source = below(2) ? BPF_X : BPF_K;
        switch (below(9)) {
            case 0:
                filter.push_back(step(BPF_LD | BPF_W | BPF_ABS, 4 * below(16)));
                break;
            case 1:
                filter.push_back(step((below(2) ? BPF_LD : BPF_LDX) | BPF_IMM, below(~0U)));
                break;
            case 2:
                filter.push_back(
                    step((below(2) ? BPF_LD : BPF_LDX) | BPF_MEM, below(BPF_MEMWORDS)));
                break;
            case 3:
                filter.push_back(step(below(2) ? BPF_ST : BPF_STX, below(BPF_MEMWORDS)));
                break;
            case 4:
                filter.push_back(step(BPF_MISC | (below(2) ? BPF_TAX : BPF_TXA)));
                break;
            case 5:
                filter.push_back(step((below(2) ? BPF_LD : BPF_LDX) | BPF_W | BPF_LEN));
                break;
            case 6:
            case 7: {
                const uint32_t what = calculations[below(std::size(calculations))];
                const bool shift = what == BPF_LSH || what == BPF_RSH;
                const bool keep = shift || what == BPF_NEG || what == BPF_DIV;
                filter.push_back(step(BPF_ALU | what | (keep ? BPF_K : source),
                                      shift ? below(32) : 1 + below(1000)));
                break;
            }
            default:
                filter.push_back(step(BPF_JMP | comparisons[below(4)] | source, below(70),
                                      static_cast<uint8_t>(below(left)),
                                      static_cast<uint8_t>(below(left))));
                break;
        }
    }
    filter.push_back(step(BPF_ALU | BPF_AND | BPF_K, 1023));
    filter.push_back(step(BPF_ALU | BPF_OR | BPF_K, kErrno | 1024));
    filter.push_back(step(BPF_RET | BPF_A));
    return filter;
}

// What the kernel answers: the errno, or -1 when it does not take the filter.
int ask_kernel(Filter filter, const seccomp_data& call) {
    // All other calls pass.
    Filter whole = {step(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                    step(BPF_JMP | BPF_JEQ | BPF_K, kNoCall, 1, 0),
                    step(BPF_RET | BPF_K, SECCOMP_RET_ALLOW), step(BPF_LD | BPF_IMM, 0),
                    step(BPF_LDX | BPF_IMM, 0)};
    whole.insert(whole.end(), filter.begin(), filter.end());
    int answer[2];
    if (pipe(answer) != 0) return -1;
    const pid_t child = fork();
    if (child == 0) {
        const sock_fprog program = {static_cast<unsigned short>(whole.size()), whole.data()};
        int error = -1;
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0) {
            errno = 0;
            syscall(kNoCall, call.args[0], call.args[1], call.args[2], call.args[3], call.args[4],
                    call.args[5]);
            error = errno;
        }
        _exit(write(answer[1], &error, sizeof(error)) != sizeof(error));
    }
    int error = -1;
    close(answer[1]);
    if (read(answer[0], &error, sizeof(error)) != sizeof(error)) error = -1;
    close(answer[0]);
    waitpid(child, nullptr, 0);
    return error;
}

TEST(RunFilter, AgreesWithTheKernel) {
    std::mt19937 random(20261122);
    int taken = 0;
    for (int i = 0; i < 300; ++i) {
        Filter filter = random_filter(random);
        // The program counter is the one word that is not known here.
        for (sock_filter& one : filter)
            if (one.code == (BPF_LD | BPF_W | BPF_ABS) && (one.k == 8 || one.k == 12)) one.k = 16;
        const seccomp_data call =
            call_of(kNoCall, {random(), random(), 7, uint64_t{random()} << 20, 0, ~uint64_t{0}});
        const int expected = ask_kernel(filter, call);
        if (expected < 0) continue;
        ++taken;
        const std::optional<uint32_t> answer = run_filter(filter, call);
        ASSERT_TRUE(answer) << i;
        EXPECT_EQ(static_cast<int>(*answer & SECCOMP_RET_DATA), expected) << i;
    }
    EXPECT_GT(taken, 250);
}

Filter always(uint32_t answer) {
    return {step(BPF_RET | BPF_K, answer)};
}

Filter only_for(int number, uint32_t answer) {
    return {step(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
            step(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 1),
            step(BPF_RET | BPF_K, answer), step(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
}

TEST(FindForbidden, TheStrictestFilterCounts) {
    EXPECT_FALSE(find_forbidden({}));
    EXPECT_FALSE(find_forbidden({always(SECCOMP_RET_ALLOW), always(SECCOMP_RET_LOG)}));
    const auto killed =
        find_forbidden({always(SECCOMP_RET_ALLOW), only_for(SYS_clone, SECCOMP_RET_KILL_PROCESS),
                        always(SECCOMP_RET_LOG)});
    EXPECT_EQ(killed, "clone (it would be killed)");
    EXPECT_EQ(find_forbidden({only_for(SYS_clone, kErrno | EPERM),
                              only_for(SYS_clone, SECCOMP_RET_USER_NOTIF)}),
              "clone (the call would fail: Operation not permitted)");
    EXPECT_EQ(find_forbidden({{step(BPF_LD | BPF_IMM)}}),
              "rt_sigprocmask (the filter can't be understood)");
}

TEST(FindForbidden, WhatGlibcDoesWithout) {
    EXPECT_FALSE(find_forbidden({only_for(SYS_clone3, kErrno | ENOSYS)}));
    EXPECT_TRUE(find_forbidden({only_for(SYS_clone3, kErrno | EPERM)}));
    EXPECT_FALSE(find_forbidden({only_for(SYS_rseq, kErrno | EPERM)}));
    EXPECT_TRUE(find_forbidden({only_for(SYS_rseq, SECCOMP_RET_KILL_THREAD)}));
}

TEST(FindForbidden, LooksAtArguments) {
    // As systemd's MemoryDenyWriteExecute: no mprotect() that makes code.
    const Filter filter = {
        step(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        step(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 0, 3),
        step(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
        step(BPF_JMP | BPF_JSET | BPF_K, 4, 0, 1),
        step(BPF_RET | BPF_K, kErrno | EPERM),
        step(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    EXPECT_EQ(find_forbidden({filter}),
              "mprotect to executable (the call would fail: Operation not permitted)");
}

} // namespace
} // namespace speedbump::inject
