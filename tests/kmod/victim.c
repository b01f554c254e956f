/* SPDX-License-Identifier: MIT */
/* Calls its own function and the library's as often as its argument says. */
#include <stdlib.h>

int library_work(int value);

__attribute__((noinline)) void program_work(void) {
    __asm__ volatile("nop");
}

int main(int argc, char** argv) {
    int calls = argc > 1 ? atoi(argv[1]) : 1;
    for (int i = 0; i < calls; i++) {
        program_work();
        library_work(i);
    }
    return 0;
}
