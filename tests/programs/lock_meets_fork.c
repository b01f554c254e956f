// SPDX-License-Identifier: MIT
/*
 * Preloaded into a Python: the first lock that a thread other than the first one takes is held until
 * the program forks, or while it does, and some time more. Locks of CPython are semaphores before
 * 3.13; the first one of a thread that PyThreadState_New() is called on is the lock of all thread
 * states.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

static atomic_int forks;
static atomic_int forks_under_way;

static void nap(long ms)
{
    struct timespec time = {0, ms * 1000000};

    nanosleep(&time, NULL);
}

static int hold(int result)
{
    static _Thread_local int has_held;
    const int before = forks;
    const int error = errno;

    if (result != 0 || has_held || gettid() == getpid())
        return result;
    has_held = 1;
    for (int i = 0; i < 1000 && !forks_under_way && forks == before; ++i)
        nap(1);
    nap(20);
    errno = error;
    return result;
}

pid_t fork(void)
{
    pid_t (*next)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "fork");

    ++forks_under_way;
    ++forks;
    const pid_t result = next();
    --forks_under_way; /* in the child, too */
    return result;
}

int sem_wait(sem_t *semaphore)
{
    int (*next)(sem_t *) = (int (*)(sem_t *))dlsym(RTLD_NEXT, "sem_wait");

    return hold(next(semaphore));
}

int sem_trywait(sem_t *semaphore)
{
    int (*next)(sem_t *) = (int (*)(sem_t *))dlsym(RTLD_NEXT, "sem_trywait");

    return hold(next(semaphore));
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until)
{
    int (*next)(sem_t *, const struct timespec *) =
        (int (*)(sem_t *, const struct timespec *))dlsym(RTLD_NEXT, "sem_timedwait");

    return hold(next(semaphore, until));
}

int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *until)
{
    int (*next)(sem_t *, clockid_t, const struct timespec *) =
        (int (*)(sem_t *, clockid_t, const struct timespec *))dlsym(RTLD_NEXT, "sem_clockwait");

    return hold(next(semaphore, clock, until));
}
