// SPDX-License-Identifier: MIT
#pragma once

// Functions to slow, one per kind of first instruction. Naked: the compiler adds nothing.
extern "C" {

// A push, which the kernel emulates.
[[gnu::naked, gnu::noinline, gnu::used]] void work_push() {
    __asm__("push %rbp\n mov %rsp, %rbp\n pop %rbp\n ret");
}

// A 5-byte nop, which Linux 6.18 turns into a call.
[[gnu::naked, gnu::noinline, gnu::used]] void work_nop() {
    __asm__(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n ret");
}

// No instruction but the return that the kernel would emulate: single-stepped out of line.
[[gnu::naked, gnu::noinline, gnu::used]] void work_step() {
    __asm__("mov %edi, %eax\n ret");
}

// The cheap instruction comes second.
[[gnu::naked, gnu::noinline, gnu::used]] void work_late() {
    __asm__("endbr64\n push %rbp\n pop %rbp\n ret");
}

// Begins with an instruction that the kernel refuses to probe. Adds 1 to the int at `rsp - 64`.
[[gnu::naked, gnu::noinline, gnu::used]] void locked_work() {
    __asm__("lock incl -64(%rsp)\n ret");
}

} // extern "C"
