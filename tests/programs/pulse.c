// SPDX-License-Identifier: MIT
// A service that sleeps most of the time, so that many fit on few CPUs: each unit is work_a() and then
// a pause, together US (1000) long. A delay of work_a() comes on top: its criticality is 1. With a
// second number, after each so many units it calls now_and_then().
#include <errno.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#define NOINLINE __attribute__((noinline, noclone))

static volatile long units, rare_calls;

NOINLINE void work_a(long us) {
    struct timespec left = {us / 1000000, us % 1000000 * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

NOINLINE void unit_done(void) { ++units; }

NOINLINE void now_and_then(void) { ++rare_calls; }

int main(int count, char** arguments) {
    const long us = count > 1 ? atol(arguments[1]) : 1000;
    const long rare = count > 2 ? atol(arguments[2]) : 0;
    prctl(PR_SET_TIMERSLACK, 1ul, 0, 0, 0);
    for (;;) {
        work_a(us);
        unit_done();
        if (rare > 0 && units % rare == 0) now_and_then();
    }
}
