// SPDX-License-Identifier: MIT
#pragma once

#include "code.h" // of the machine

// Functions to slow, one per kind of first instruction.
extern "C" {

// A push; on x86-64 the kernel emulates it.
NAKED void work_push() {
    __asm__(BEGINS_WITH_PUSH);
}

// A 5-byte nop, which Linux 6.18 turns into a call.
NAKED void work_nop() {
    __asm__(BEGINS_WITH_NOP);
}

// No instruction but the return that the kernel would emulate: single-stepped out of line.
NAKED void work_step() {
    __asm__(BEGINS_WITH_STEP);
}

// A landing pad; on x86-64 the cheap instruction comes second.
NAKED void work_late() {
    __asm__(BEGINS_WITH_LANDING);
}

// Begins with an instruction that the kernel refuses to probe. Adds 1 to the int at 64 below the
// stack pointer.
NAKED void locked_work() {
    __asm__(BEGINS_WITH_LOCK);
}

} // extern "C"
