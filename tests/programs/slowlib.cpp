// SPDX-License-Identifier: MIT
// A library that a program can load late.
#include "code.h"

extern "C" NAKED [[gnu::visibility("default")]] void lib_work() {
    __asm__(BEGINS_WITH_PUSH);
}

// Calls what it is given, and goes on behind it.
using Mix = unsigned long (*)(unsigned long, unsigned long, unsigned long, unsigned long);
extern "C" [[gnu::noinline, gnu::used, gnu::visibility("default")]] unsigned long lib_calls(
    Mix mix, unsigned long turn) {
    const unsigned long made_of = mix(turn, 1, 2, 3);
    __asm__ volatile("" : : "r"(made_of) : "memory");
    return made_of;
}
