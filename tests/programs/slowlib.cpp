// SPDX-License-Identifier: MIT
// A library that a program can load late.
extern "C" [[gnu::naked, gnu::noinline, gnu::used, gnu::visibility("default")]] void lib_work() {
    __asm__("push %rbp\n mov %rsp, %rbp\n pop %rbp\n ret");
}
