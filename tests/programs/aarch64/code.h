// SPDX-License-Identifier: MIT
#pragma once

// Whole functions by their first instruction. There are no naked ones here: what needs no frame
// gets none, and the compiler's own return is never reached.
#define NAKED [[gnu::noinline, gnu::used]]
#define BEGINS_WITH_PUSH "stp x29, x30, [sp, #-16]!\n ldp x29, x30, [sp], #16\n ret"
#define BEGINS_WITH_NOP "nop\n ret"
#define BEGINS_WITH_STEP "mov w0, w1\n ret"
#define BEGINS_WITH_LANDING "bti c\n stp x29, x30, [sp, #-16]!\n ldp x29, x30, [sp], #16\n ret"
#define BEGINS_WITH_LOCK                                              \
    "ldxr w1, [sp]\n clrex\n ldur w1, [sp, #-64]\n add w1, w1, #1\n " \
    "stur w1, [sp, #-64]\n ret"
