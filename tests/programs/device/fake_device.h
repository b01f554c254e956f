/* SPDX-License-Identifier: MIT */
/*
 * An asynchronous device for tests, shaped like the CUDA driver's interface: launches return at
 * once, kernels of a stream run one after the other, those of several streams side by side, and
 * who wants to know that they are done waits.
 *
 * The device is a clock: when a kernel ends is known when it is launched, since all before it in
 * its stream is known. So it works as evenly as one of silicon, however busy the host is, and the
 * library knows to the nanosecond when it had nothing to do. Thread-safe. Functions return 0, or an
 * errno value.
 */
#ifndef SPEEDBUMP_FAKE_DEVICE_H
#define SPEEDBUMP_FAKE_DEVICE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fd_stream* fdStream; /* NULL: the default one */
typedef struct fd_event* fdEvent;

/* As CUlaunchConfig: the stream lies at offset 32. */
struct fdConfig {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    unsigned reserved;
    fdStream stream;
};

int fdStreamCreate(fdStream* stream);
int fdEventCreate(fdEvent* event);
/* A launch waits while so many kernels of its stream are not done; 0: never. Of all streams. */
int fdSetQueueDepth(unsigned depth);
/* Kernel times are drawn from a uniform distribution, half to three halves of what is asked for;
 * 0: they are what is asked for. */
int fdSeed(uint64_t seed);

int fdLaunchKernel(fdStream stream, uint64_t ns);
/* The arguments lie where cuLaunchKernel has them: the stream is the ninth. */
int fdLaunchGrid(uint64_t ns, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                 unsigned bz, unsigned shared_bytes, fdStream stream, void** parameters);
int fdLaunchKernelEx(const struct fdConfig* config, uint64_t ns);

/* The event is reached when all that is in the stream now is done. */
int fdEventRecord(fdEvent event, fdStream stream);
int fdEventSynchronize(fdEvent event);
int fdStreamSynchronize(fdStream stream);
int fdCtxSynchronize(void);

/* The truth, up to now_ns (CLOCK_MONOTONIC). */
struct fdTotals {
    uint64_t now_ns;
    uint64_t launches;
    uint64_t waits;
    uint64_t wait_ns;      /* in synchronise calls, all threads */
    uint64_t held_ns;      /* in launches, for room in the queue */
    uint64_t idle_ns;      /* no stream had anything to do; from the first launch on */
    uint64_t seen_idle_ns; /* of that: after the return of a synchronise with all that was queued */
    uint64_t late_ns;      /* of that: until a host that waited noticed that all was done */
};
int fdTotals(struct fdTotals* totals);

#ifdef __cplusplus
}
#endif

#endif /* SPEEDBUMP_FAKE_DEVICE_H */
