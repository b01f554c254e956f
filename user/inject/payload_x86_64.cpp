// SPDX-License-Identifier: MIT
#include "inject/payload_x86_64.h"

#include "inject/payload_code.h"

static_assert(offsetof(ucontext_t, uc_mcontext.gregs) == 40 &&
              offsetof(ucontext_t, uc_sigmask) == 296);

// The only code in the text padding. Enters with the Block in %rdi and a stack that is its own
// down to the end of the mapping; all other registers belong to the interrupted code and come back
// from the frame.
asm(R"(
    .pushsection speedbump_payload,"ax",@progbits
    .globl speedbump_stub_begin
    .hidden speedbump_stub_begin
    .globl speedbump_stub_end
    .hidden speedbump_stub_end
    .balign 16
speedbump_stub_begin:
    cld
    mov %rdi, %rbx
    mov $14, %eax               # rt_sigprocmask(SIG_SETMASK, all, NULL, 8)
    mov $2, %edi
    lea 48(%rbx), %rsi
    xor %edx, %edx
    mov $8, %r10d
    syscall
    mov $9, %eax                # mmap(region, size, RW, PRIVATE|ANONYMOUS|FIXED_NOREPLACE)
    mov (%rbx), %rdi
    mov $0x30000, %esi
    mov $3, %edx
    mov $0x100022, %r10d
    mov $-1, %r8
    xor %r9d, %r9d
    syscall
    cmp (%rbx), %rax
    je 1f
    mov %rax, 64(%rbx)
    jmp 3f
1:  mov (%rbx), %rdi
    mov 16(%rbx), %rsi
    mov 8(%rbx), %rcx
    shr $3, %rcx
    rep movsq
    mov $10, %eax               # mprotect(region, code, R|X)
    mov (%rbx), %rdi
    mov $0x2000, %esi
    mov $5, %edx
    syscall
    mov %rax, 64(%rbx)
    test %rax, %rax
    jnz 2f
    mov %rsp, %r12
    mov (%rbx), %rsp
    mov 56(%rbx), %rax
    add %rsp, %rax
    add $0x30000, %rsp
    mov %rbx, %rdi
    call *%rax                  # payload_borrowed(block)
    mov %r12, %rsp
    mov %rax, 64(%rbx)
    test %rax, %rax
    jnz 2f
    mov (%rbx), %rax
    movl $1, 0x2008(%rax)       # Region.left: from here the new thread may unmap the region
    jmp 3f
2:  mov $11, %eax               # no thread: munmap(region, size)
    mov (%rbx), %rdi
    mov $0x30000, %esi
    syscall
3:  cmpq $0, 32(%rbx)
    jne 4f
    mov 24(%rbx), %rsp
    mov $15, %eax               # rt_sigreturn
    syscall
4:  mov $14, %eax               # rt_sigprocmask(SIG_SETMASK, &frame->uc_sigmask, NULL, 8)
    mov $2, %edi
    mov 24(%rbx), %rsi
    add $296, %rsi
    xor %edx, %edx
    mov $8, %r10d
    syscall
    mov 40(%rbx), %rcx
    mov $0xfff9ffff, %eax       # all but AMX (17, 18): where that is asked for a processor reads
    mov $-1, %edx               # so far as its tiles would lie, behind what is there
    xrstor64 (%rcx)
    mov 24(%rbx), %rcx          # rcx and r11 are the kernel's in a system call: free to use
    mov 40(%rcx), %r8
    mov 48(%rcx), %r9
    mov 56(%rcx), %r10
    mov 72(%rcx), %r12
    mov 80(%rcx), %r13
    mov 88(%rcx), %r14
    mov 96(%rcx), %r15
    mov 104(%rcx), %rdi
    mov 112(%rcx), %rsi
    mov 120(%rcx), %rbp
    mov 128(%rcx), %rbx
    mov 136(%rcx), %rdx
    mov 144(%rcx), %rax
    mov 168(%rcx), %r11
    mov 160(%rcx), %rsp
    jmp *%r11
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
    push %rbx
    mov %rdi, %rbx
    call speedbump_payload_work
    mov 24(%rbx), %rdi          # Region.address
    mov 32(%rbx), %rsi          # Region.size
    mov 40(%rbx), %rax          # Region.munmap
    pop %rbx
    jmp *%rax
    .popsection
)");
