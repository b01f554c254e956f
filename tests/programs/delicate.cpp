// SPDX-License-Identifier: MIT
// Functions that a probe put at the wrong place would break, and a program that looks whether one
// is broken: it calls them until a line comes in, and answers "ROUNDS WRONG".
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

extern "C" {

// A leaf function with data in the red zone and a 5-byte nop, which Linux 6.18 makes a call of.
[[gnu::naked, gnu::noinline, gnu::used]] long red_zone(long, long) {
    __asm__(
        "endbr64\n mov %rdi, -8(%rsp)\n mov %rsi, -16(%rsp)\n"
        ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n mov -8(%rsp), %rax\n add -16(%rsp), %rax\n ret");
}

// The same nop as first instruction, in a function that forked children call.
[[gnu::naked, gnu::noinline, gnu::used]] long one_more(long) {
    __asm__(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n lea 1(%rdi), %rax\n ret");
}

// VEX instructions whose opcode byte is that of a short branch.
[[gnu::naked, gnu::noinline, gnu::used]] uint32_t bits(float) {
    __asm__("vmovd %xmm0, %eax\n ret");
}
[[gnu::naked, gnu::noinline, gnu::used]] uint64_t spilled_bits(double) {
    __asm__("vmovdqu %xmm0, -32(%rsp)\n mov -32(%rsp), %rax\n ret");
}
[[gnu::naked, gnu::noinline, gnu::used]] uint32_t only_vex(float) {
    __asm__("vmovd %xmm0, %eax\n .byte 0x3e\n ret"); // nothing after it may be probed either
}

// What the kernel executes once per repetition, and what it refuses.
[[gnu::naked, gnu::noinline, gnu::used]] void fill(char*, long, long, long) {
    __asm__("rep stosb\n mov %rdi, %rax\n ret");
}
[[gnu::naked, gnu::noinline, gnu::used]] void locked(int*) {
    __asm__("lock incl (%rdi)\n mov %rdi, %rax\n ret");
}

} // extern "C"

namespace {

bool child_calls() {
    const pid_t child = fork();
    if (child == 0) _exit(one_more(41) == 42 ? 0 : 1);
    int status = 0;
    return waitpid(child, &status, 0) == child && status == 0;
}

} // namespace

int main() {
    const bool has_avx = __builtin_cpu_supports("avx");
    std::printf("ready\n");
    std::fflush(stdout);
    long rounds = 0, wrong = 0;
    pollfd input{STDIN_FILENO, POLLIN, 0};
    while (poll(&input, 1, 0) == 0) {
        for (int i = 0; i < 100; ++i, ++rounds) {
            wrong += red_zone(rounds, 7) != rounds + 7;
            wrong += one_more(rounds) != rounds + 1;
            char buffer[64];
            std::memset(buffer, 1, sizeof buffer);
            fill(buffer, 0, 0, 32);
            wrong += std::memcmp(buffer, buffer + 1, 31) != 0 || buffer[32] != 1;
            int number = 5;
            locked(&number);
            wrong += number != 6;
            if (!has_avx) continue;
            wrong += bits(1.0F) != 0x3f800000U;
            wrong += spilled_bits(1.0) != 0x3ff0000000000000U;
            wrong += only_vex(2.0F) != 0x40000000U;
        }
        wrong += !child_calls();
    }
    std::printf("%ld %ld\n", rounds, wrong);
    return 0;
}
