// SPDX-License-Identifier: MIT
#pragma once

#include <sys/ucontext.h>

#include <cerrno>

#include "inject/payload_tools.h"

namespace {

PAYLOAD_INLINE long raw_call(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 asm("r10") = d;
    register long r8 asm("r8") = e;
    register long r9 asm("r9") = f;
    long result;
    asm volatile("syscall"
                 : "=a"(result)
                 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                 : "rcx", "r11", "memory");
    return result;
}

// Has the thread go on after its call, which failed.
PAYLOAD_INLINE void fail_call_of(ucontext_t* context) {
    context->uc_mcontext.gregs[REG_RIP] += 2; // after the syscall instruction
    context->uc_mcontext.gregs[REG_RAX] = -EINTR;
}

// The fourth argument of the call that is issued again.
PAYLOAD_INLINE long time_of_call(const ucontext_t* context) {
    return context->uc_mcontext.gregs[REG_R10];
}
PAYLOAD_INLINE void set_time_of_call(ucontext_t* context, long time) {
    context->uc_mcontext.gregs[REG_R10] = time;
}

// Where the copy of this code that runs begins.
PAYLOAD_INLINE uint64_t own_begin() {
    uint64_t address;
    asm("lea __start_speedbump_payload(%%rip), %0" : "=r"(address));
    return address;
}

} // namespace
