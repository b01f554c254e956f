// SPDX-License-Identifier: MIT
// In C, where POSIX' cleanup handlers need no unwinding.
#include "gil_stay.h"

#include <pthread.h>
#include <stddef.h>
#include <unistd.h>

static void wait_for_the_end(void* unused) {
    (void)unused;
    for (;;) pause();
}

void sb_stay(void (*work)(void*), void* argument) {
    pthread_cleanup_push(wait_for_the_end, NULL);
    work(argument);
    pthread_cleanup_pop(0);
}
