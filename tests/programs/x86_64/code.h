// SPDX-License-Identifier: MIT
#pragma once

// Whole functions by their first instruction; the compiler adds nothing.
#define NAKED [[gnu::naked, gnu::noinline, gnu::used]]
#define BEGINS_WITH_PUSH "push %rbp\n mov %rsp, %rbp\n pop %rbp\n ret"
#define BEGINS_WITH_NOP ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n ret"
#define BEGINS_WITH_STEP "mov %edi, %eax\n ret"
#define BEGINS_WITH_LANDING "endbr64\n push %rbp\n pop %rbp\n ret"
#define BEGINS_WITH_LOCK "lock incl -64(%rsp)\n ret"
