// SPDX-License-Identifier: MIT
// A bulk-synchronous job: in each step each rank works, and then waits for all others.
//
//   bsp SECONDS US...    one US for each rank: what its work takes in a step
//
// Work is sleep, and so is waiting, so that many ranks fit on few CPUs and none takes another's time.
#include <errno.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#define NOINLINE __attribute__((noinline, noclone))

static volatile long steps;

static void pause_us(long us) {
    struct timespec left = {us / 1000000, us % 1000000 * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

NOINLINE void work_step(long us) { pause_us(us); }

NOINLINE void wait_for_all(void) {
    MPI_Request request;
    int done = 0;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    for (MPI_Test(&request, &done, MPI_STATUS_IGNORE); !done;
         MPI_Test(&request, &done, MPI_STATUS_IGNORE))
        pause_us(20);
}

NOINLINE void step_done(void) { ++steps; }

int main(int count, char** arguments) {
    int rank, ranks;
    prctl(PR_SET_TIMERSLACK, 1ul, 0, 0, 0);
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (count != 2 + ranks) {
        fprintf(stderr, "bsp: SECONDS, and a time for each of %d ranks\n", ranks);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    const double end = MPI_Wtime() + atof(arguments[1]);
    const long us = atol(arguments[2 + rank]);
    for (int goes_on = 1; goes_on;) {
        work_step(us);
        wait_for_all();
        step_done();
        // Rank 0 decides for all, now and then: a step more or less by each its own clock hangs.
        if (steps % 64 == 0) {
            goes_on = MPI_Wtime() < end;
            MPI_Bcast(&goes_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
        }
    }
    MPI_Finalize();
    return 0;
}
