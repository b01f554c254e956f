// SPDX-License-Identifier: MIT
#include "inject/payload_aarch64.h"

#include "inject/payload_code.h"

static_assert(offsetof(ucontext_t, uc_stack) == 16 && offsetof(ucontext_t, uc_sigmask) == 40 &&
              offsetof(ucontext_t, uc_mcontext.regs) == 184 &&
              offsetof(ucontext_t, uc_mcontext.sp) == 432 &&
              offsetof(ucontext_t, uc_mcontext.pc) == 440 &&
              offsetof(ucontext_t, uc_mcontext.pstate) == 448);

// The only code in the text padding. Enters with the Block in x0; all other registers, and what
// lies above the stack pointer, belong to the interrupted code and come back from the frame. It
// needs no landing pad (BTI) where it is entered, as the branch type is cleared with the registers,
// and leaves by rt_sigreturn or a return, which need none either.
asm(R"(
    .pushsection speedbump_payload,"ax",@progbits
    .arch_extension fp
    .arch_extension simd
    .globl speedbump_stub_begin
    .hidden speedbump_stub_begin
    .globl speedbump_stub_end
    .hidden speedbump_stub_end
    .balign 16
speedbump_stub_begin:
    mov x19, x0
    mov x8, #135                // rt_sigprocmask(SIG_SETMASK, all, NULL, 8)
    mov x0, #2
    add x1, x19, #48
    mov x2, #0
    mov x3, #8
    svc #0
    mov x8, #132                // sigaltstack(NULL, &frame->uc_stack), which nobody else can ask
    mov x0, #0
    ldr x1, [x19, #24]
    add x1, x1, #16
    svc #0
    mov x8, #222                // mmap(region, size, RW, PRIVATE|ANONYMOUS|FIXED_NOREPLACE)
    ldr x0, [x19]
    mov x1, #0x30000
    mov x2, #3
    mov x3, #0x22
    movk x3, #0x10, lsl #16
    mov x4, #-1
    mov x5, #0
    svc #0
    ldr x1, [x19]
    cmp x0, x1
    b.eq 1f
    str x0, [x19, #64]
    b 3f
1:  ldr x2, [x19, #16]          // the code
    ldr x3, [x19, #8]
    mov x4, #0
5:  ldr x5, [x2, x4]
    str x5, [x1, x4]
    add x4, x4, #8
    cmp x4, x3
    b.lo 5b
    // What was written as data is fetched as code: by 16 bytes, the shortest cache line there is.
    mov x4, #0
6:  add x5, x1, x4
    dc cvau, x5
    add x4, x4, #16
    cmp x4, x3
    b.lo 6b
    dsb ish
    mov x0, x1
    mov x8, #226                // mprotect(region, code, R|X)
    mov x1, #0x2000
    mov x2, #5
    svc #0
    str x0, [x19, #64]
    cbnz x0, 2f
    ldr x1, [x19]
    mov x4, #0
7:  add x5, x1, x4
    ic ivau, x5
    add x4, x4, #16
    cmp x4, x3
    b.lo 7b
    dsb ish
    isb
    ldr x2, [x19, #56]
    add x2, x1, x2
    mov x20, sp
    add x1, x1, #0x30, lsl #12
    mov sp, x1
    mov x0, x19
    blr x2                      // payload_borrowed(block)
    mov sp, x20
    str x0, [x19, #64]
    cbnz x0, 2f
    ldr x1, [x19]
    mov x2, #0x2008
    add x1, x1, x2
    mov w2, #1
    stlr w2, [x1]               // Region.left: from here the new thread may unmap the region
    b 3f
2:  mov x8, #215                // no thread: munmap(region, size)
    ldr x0, [x19]
    mov x1, #0x30000
    svc #0
3:  ldr x1, [x19, #24]
    ldr x2, [x19, #32]
    cbnz x2, 4f
    sub x1, x1, #128            // struct rt_sigframe begins with a siginfo
    mov sp, x1
    mov x8, #139                // rt_sigreturn
    svc #0
4:  mov x8, #135                // rt_sigprocmask(SIG_SETMASK, &frame->uc_sigmask, NULL, 8)
    mov x0, #2
    add x1, x1, #40
    mov x2, #0
    mov x3, #8
    svc #0
    ldr x1, [x19, #40]          // struct fpsimd_context
    ldp w2, w3, [x1, #8]
    msr fpsr, x2
    msr fpcr, x3
    add x1, x1, #16
    ldp q0, q1, [x1]
    ldp q2, q3, [x1, #32]
    ldp q4, q5, [x1, #64]
    ldp q6, q7, [x1, #96]
    ldp q8, q9, [x1, #128]
    ldp q10, q11, [x1, #160]
    ldp q12, q13, [x1, #192]
    ldp q14, q15, [x1, #224]
    ldp q16, q17, [x1, #256]
    ldp q18, q19, [x1, #288]
    ldp q20, q21, [x1, #320]
    ldp q22, q23, [x1, #352]
    ldp q24, q25, [x1, #384]
    ldp q26, q27, [x1, #416]
    ldp q28, q29, [x1, #448]
    ldp q30, q31, [x1, #480]
    ldr x0, [x19, #24]
    add x0, x0, #184            // uc_mcontext.regs
    ldr x1, [x0, #264]
    msr nzcv, x1
    ldp x2, x3, [x0, #16]
    ldp x4, x5, [x0, #32]
    ldp x6, x7, [x0, #48]
    ldp x9, x10, [x0, #72]
    ldp x11, x12, [x0, #88]
    ldp x13, x14, [x0, #104]
    ldp x15, x16, [x0, #120]
    ldp x17, x18, [x0, #136]
    ldp x19, x20, [x0, #152]
    ldp x21, x22, [x0, #168]
    ldp x23, x24, [x0, #184]
    ldp x25, x26, [x0, #200]
    ldp x27, x28, [x0, #216]
    ldp x29, x30, [x0, #232]
    ldr x1, [x0, #8]
    ldr x8, [x0, #248]
    ldr x0, [x0, #256]          // free: the call that comes next takes no argument
    mov sp, x8                  // from here on a signal's frame may lie over this one
    mov x8, #128                // restart_syscall
    ret x0
    .balign 8
speedbump_stub_end:
    .popsection
)");

asm(R"(
    .pushsection speedbump_payload,"ax",@progbits
    .globl speedbump_payload_thread
    .hidden speedbump_payload_thread
    .balign 16
speedbump_payload_thread:
    stp x29, x30, [sp, #-32]!
    mov x29, sp
    str x19, [sp, #16]
    mov x19, x0
    bl speedbump_payload_work
    ldp x0, x1, [x19, #24]      // Region.address, Region.size
    ldr x16, [x19, #40]         // Region.munmap
    ldr x19, [sp, #16]
    ldp x29, x30, [sp], #32
    br x16                      // by this register into whatever begins with "bti c"
    .popsection
)");
