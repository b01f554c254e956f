/* SPDX-License-Identifier: MIT */
/*
 * A host and its device (fake_device.h), in steps of one shape, until its input ends:
 *
 *   device_steps [KEY=NUMBER]... [sync=ctx|stream|event] [launch=plain|grid|config]
 *
 *   prepare=US  host work before the launches of a step          kernels=N  launches per step
 *   between=US  after each launch                                kernel=US  on the device, each
 *   finish=US   after the launches                               every=N    steps between waits
 *   depth=N     kernels that a stream takes, 0: any number       streams=N  taken in turns
 *   seed=N      kernel times are drawn at random; 0: not
 *
 * With sync=event it waits for the event of the step before, so that a step is always queued. Prints
 * "ready"; for each line that it reads, one line with its steps and the device's totals.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_device.h"

#define MAX_STREAMS 8u
#define NOINLINE __attribute__((noinline))

void host_work(uint64_t ns);

static unsigned long prepare_us, between_us, finish_us, kernels = 1, kernel_us = 100, every = 1;
static unsigned long depth, stream_count = 1, seed;
static const char *sync_kind = "ctx", *launch_kind = "plain";
static fdStream streams[MAX_STREAMS];
static fdEvent events[2];
static volatile unsigned long steps;
/* ns in calls of the device beyond what it says that they waited: what probes take there, and who has
 * the CPU meanwhile. */
static volatile uint64_t beyond_ns;

static const struct {
	const char *key;
	unsigned long *value;
} numbers[] = {{"prepare", &prepare_us}, {"between", &between_us}, {"finish", &finish_us},
	       {"kernels", &kernels},	 {"kernel", &kernel_us},   {"every", &every},
	       {"depth", &depth},	 {"streams", &stream_count}, {"seed", &seed}};

/* What is slowed and counted keeps its frame: a function of its own, with a return of its own. */
NOINLINE void prepare(void)
{
	host_work(prepare_us * 1000);
	__asm__ volatile("");
}

NOINLINE void finish(void)
{
	host_work(finish_us * 1000);
	__asm__ volatile("");
}

NOINLINE void step_done(void)
{
	++steps;
}

NOINLINE void synchronise(void)
{
	if (!strcmp(sync_kind, "ctx")) {
		fdCtxSynchronize();
	} else if (!strcmp(sync_kind, "stream")) {
		for (unsigned long i = 0; i < stream_count; i++)
			fdStreamSynchronize(streams[i]);
	} else {
		fdEventRecord(events[steps / every % 2], streams[0]);
		fdEventSynchronize(events[(steps / every + 1) % 2]);
	}
	__asm__ volatile("");
}

static void launch(fdStream stream)
{
	const uint64_t ns = kernel_us * 1000;

	if (!strcmp(launch_kind, "grid")) {
		fdLaunchGrid(ns, 1, 1, 1, 32, 1, 1, 0, stream, NULL);
	} else if (!strcmp(launch_kind, "config")) {
		struct fdConfig config = {{1, 1, 1}, {32, 1, 1}, 0, 0, stream};

		fdLaunchKernelEx(&config, ns);
	} else {
		fdLaunchKernel(stream, ns);
	}
}

static void add_beyond(const struct fdTotals *before)
{
	struct fdTotals after;

	fdTotals(&after);
	beyond_ns += after.now_ns - before->now_ns - (after.wait_ns - before->wait_ns) -
		     (after.held_ns - before->held_ns);
}

static void *answer(void *unused)
{
	char line[64];

	while (fgets(line, sizeof(line), stdin)) {
		struct fdTotals totals;

		fdTotals(&totals);
		printf("{\"steps\": %lu, \"now_ns\": %llu, \"launches\": %llu, \"waits\": %llu, "
		       "\"wait_ns\": %llu, \"held_ns\": %llu, \"idle_ns\": %llu, "
		       "\"seen_idle_ns\": %llu, \"late_ns\": %llu, \"beyond_ns\": %llu}\n",
		       steps, (unsigned long long)totals.now_ns,
		       (unsigned long long)totals.launches, (unsigned long long)totals.waits,
		       (unsigned long long)totals.wait_ns, (unsigned long long)totals.held_ns,
		       (unsigned long long)totals.idle_ns, (unsigned long long)totals.seen_idle_ns,
		       (unsigned long long)totals.late_ns, (unsigned long long)beyond_ns);
		fflush(stdout);
	}
	exit(0);
	return unused;
}

static int take(const char *argument)
{
	const char *equals = strchr(argument, '=');
	const size_t length = equals ? (size_t)(equals - argument) : 0;

	if (!equals)
		return -1;
	if (!strncmp(argument, "sync", length)) {
		sync_kind = equals + 1;
		return 0;
	}
	if (!strncmp(argument, "launch", length)) {
		launch_kind = equals + 1;
		return 0;
	}
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (strlen(numbers[i].key) != length || strncmp(argument, numbers[i].key, length))
			continue;
		*numbers[i].value = strtoul(equals + 1, NULL, 10);
		return 0;
	}
	return -1;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	for (int i = 1; i < argc; i++)
		if (take(argv[i])) {
			fprintf(stderr, "device_steps: '%s' is none of its arguments\n", argv[i]);
			return 2;
		}
	if (stream_count < 1 || stream_count > MAX_STREAMS || every < 1)
		return 2;
	fdSeed(seed);
	fdSetQueueDepth((unsigned)depth);
	for (unsigned long i = 1; i < stream_count; i++) /* the first one is the default stream */
		fdStreamCreate(&streams[i]);
	fdEventCreate(&events[0]);
	fdEventCreate(&events[1]);
	pthread_create(&thread, NULL, answer, NULL);
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		struct fdTotals before;

		prepare();
		for (unsigned long i = 0; i < kernels; i++) {
			fdTotals(&before);
			launch(streams[i % stream_count]);
			add_beyond(&before);
			if (between_us)
				host_work(between_us * 1000);
		}
		finish();
		if (steps % every == every - 1) {
			fdTotals(&before);
			synchronise();
			add_beyond(&before);
		}
		step_done();
	}
}
