// SPDX-License-Identifier: MIT
/* What Python itself can't do, for tests/runtime/inject/limits.py. */
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void nap(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&time, NULL);
}

static volatile int is_down;

/* Sleeps for ever with `left` bytes of the stack below it. */
static void *go_down(void *left)
{
    pthread_attr_t attributes;
    void *low;
    size_t size;
    char here;
    volatile char *down;

    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &low, &size);
    down = alloca((size_t)(&here - (char *)low) - (size_t)left);
    memset((char *)down, 1, 64);
    is_down = 1;
    while (down[0] == 1)
        nap(3600 * 1000L);
    return NULL;
}

/*
 * Starts a thread with a stack of 16 KB, of which `left` bytes are not in use, and waits until it
 * is so deep: before, it has room for much.
 */
int sleep_deep(unsigned long left)
{
    pthread_attr_t attributes;
    pthread_t thread;
    int error;

    is_down = 0;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 16384);
    error = pthread_create(&thread, &attributes, go_down, (void *)left);
    while (error == 0 && !is_down)
        nap(1);
    return error;
}

/* Makes a child that is on the memory of this process, as is its caller, until it is killed. */
void stay_in_vfork(void)
{
    pid_t own = getpid();
    pid_t child = vfork();

    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == own) /* else it has ended before that */
            nap(3600 * 1000L);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}
