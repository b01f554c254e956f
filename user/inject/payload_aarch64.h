// SPDX-License-Identifier: MIT
#pragma once

#include <sys/ucontext.h>

#include <cerrno>

#include "inject/payload_tools.h"

namespace {

PAYLOAD_INLINE long raw_call(long number, long a, long b, long c, long d, long e, long f) {
    register long x8 asm("x8") = number;
    register long x0 asm("x0") = a;
    register long x1 asm("x1") = b;
    register long x2 asm("x2") = c;
    register long x3 asm("x3") = d;
    register long x4 asm("x4") = e;
    register long x5 asm("x5") = f;
    asm volatile("svc #0"
                 : "+r"(x0)
                 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                 : "memory", "cc");
    return x0;
}

// Has the thread go on after its call, which failed.
PAYLOAD_INLINE void fail_call_of(ucontext_t* context) {
    context->uc_mcontext.pc += 4; // after the svc instruction
    context->uc_mcontext.regs[0] = static_cast<unsigned long long>(-EINTR);
}

// The fourth argument of the call that is issued again.
PAYLOAD_INLINE long time_of_call(const ucontext_t* context) {
    return static_cast<long>(context->uc_mcontext.regs[3]);
}
PAYLOAD_INLINE void set_time_of_call(ucontext_t* context, long time) {
    context->uc_mcontext.regs[3] = static_cast<unsigned long long>(time);
}

// Where the copy of this code that runs begins.
PAYLOAD_INLINE uint64_t own_begin() {
    uint64_t address;
    asm("adr %0, __start_speedbump_payload" : "=r"(address));
    return address;
}

} // namespace
