/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "fake_device.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define MAX_DEPTH 1024u
#define SPIN_NS 100000ull /* a sleep ends late: so much before its end it becomes a spin */

/* Returns it from a frame of its own, as a large function does: one that begins with a push, where a
 * probe costs little. */
#define FRAME(call)                        \
	do {                               \
		const int result = (call); \
						   \
		__asm__ volatile("");      \
		return result;             \
	} while (0)

struct fd_stream {
	struct fd_stream *next;
	uint64_t end_ns; /* of its last kernel */
	uint64_t known_ns; /* up to there somebody has waited */
	uint64_t launches;
	uint64_t ends[MAX_DEPTH]; /* of its last ones, by number */
};

struct fd_event {
	struct fd_stream *stream;
	uint64_t end_ns;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fd_stream default_stream;
static struct fd_stream *streams = &default_stream;
static uint64_t busy_until; /* the last end of all streams */
static uint64_t empty_since; /* a synchronise that left nothing returned then; 0: none has */
static uint64_t random_state;
static unsigned queue_depth;
static struct fdTotals totals;
/* Calls that wait just now, and the sum of when they began: what they have waited counts already. */
static struct in_flight {
	uint64_t calls, begins;
} waits_in_flight, held_in_flight;

static uint64_t now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000ull + (uint64_t)time.tv_nsec;
}

static void sleep_until(uint64_t end)
{
	if (end > now_ns() + 2 * SPIN_NS) {
		const uint64_t wake = end - SPIN_NS;
		const struct timespec time = {(time_t)(wake / 1000000000ull),
					      (long)(wake % 1000000000ull)};

		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR)
			;
	}
	while (now_ns() < end)
		;
}

static struct fd_stream *the_stream(fdStream stream)
{
	return stream ? stream : &default_stream;
}

static uint64_t random_time(uint64_t ns)
{
	if (!random_state)
		return ns;
	random_state ^= random_state << 13; /* xorshift */
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return ns / 2 + random_state % (ns + 1);
}

int fdStreamCreate(fdStream *stream)
{
	struct fd_stream *created = calloc(1, sizeof(*created));

	if (!created)
		return ENOMEM;
	pthread_mutex_lock(&lock);
	created->next = streams->next;
	streams->next = created;
	pthread_mutex_unlock(&lock);
	*stream = created;
	return 0;
}

int fdEventCreate(fdEvent *event)
{
	*event = calloc(1, sizeof(**event));
	if (!*event)
		return ENOMEM;
	(*event)->stream = &default_stream;
	return 0;
}

int fdSetQueueDepth(unsigned depth)
{
	if (depth > MAX_DEPTH)
		return EINVAL;
	queue_depth = depth;
	return 0;
}

int fdSeed(uint64_t seed)
{
	random_state = seed;
	return 0;
}

static uint64_t begin_call(struct in_flight *calls)
{
	uint64_t now;

	pthread_mutex_lock(&lock);
	now = now_ns();
	++calls->calls;
	calls->begins += now;
	pthread_mutex_unlock(&lock);
	return now;
}

static uint64_t end_call(struct in_flight *calls, uint64_t begin, uint64_t now)
{
	--calls->calls;
	calls->begins -= begin;
	return now - begin;
}

/* Who has waited since then returns now. */
static void count_late(uint64_t begin, uint64_t now)
{
	const uint64_t since = busy_until > begin ? busy_until : begin;

	if (now > since && !empty_since && totals.launches)
		totals.late_ns += now - since;
}

static void wait_for_room(struct fd_stream *stream)
{
	uint64_t begin, free_at, now;

	pthread_mutex_lock(&lock);
	free_at = stream->launches < queue_depth
			  ? 0
			  : stream->ends[(stream->launches - queue_depth) % MAX_DEPTH];
	pthread_mutex_unlock(&lock);
	if (free_at <= now_ns())
		return;
	begin = begin_call(&held_in_flight);
	sleep_until(free_at);
	pthread_mutex_lock(&lock);
	now = now_ns();
	totals.held_ns += end_call(&held_in_flight, begin, now);
	count_late(begin, now);
	pthread_mutex_unlock(&lock);
}

static int launch(struct fd_stream *stream, uint64_t ns)
{
	uint64_t now;

	if (queue_depth)
		wait_for_room(stream);
	pthread_mutex_lock(&lock);
	now = now_ns();
	if (totals.launches++ && now > busy_until)
		totals.idle_ns += now - busy_until;
	if (empty_since)
		totals.seen_idle_ns += now - empty_since;
	empty_since = 0;
	stream->end_ns = (stream->end_ns > now ? stream->end_ns : now) + random_time(ns);
	stream->ends[stream->launches++ % MAX_DEPTH] = stream->end_ns;
	if (stream->end_ns > busy_until)
		busy_until = stream->end_ns;
	pthread_mutex_unlock(&lock);
	return 0;
}

int fdLaunchKernel(fdStream stream, uint64_t ns)
{
	FRAME(launch(the_stream(stream), ns));
}

int fdLaunchGrid(uint64_t ns, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
		 unsigned bz, unsigned shared_bytes, fdStream stream, void **parameters)
{
	(void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
	(void)shared_bytes, (void)parameters;
	FRAME(launch(the_stream(stream), ns));
}

int fdLaunchKernelEx(const struct fdConfig *config, uint64_t ns)
{
	FRAME(launch(the_stream(config->stream), ns));
}

int fdEventRecord(fdEvent event, fdStream stream)
{
	pthread_mutex_lock(&lock);
	event->stream = the_stream(stream);
	event->end_ns = event->stream->end_ns;
	pthread_mutex_unlock(&lock);
	return 0;
}

/* Whether somebody has waited for all that was launched. */
static int is_known_to_be_empty(void)
{
	for (struct fd_stream *one = streams; one; one = one->next)
		if (one->known_ns < one->end_ns)
			return 0;
	return totals.launches > 0;
}

/* For a stream, NULL: for all. Those that synchronise end in a call of it, which a compiler makes a
 * jump. */
static __attribute__((noinline)) int wait_until(uint64_t end, uint64_t begin,
						struct fd_stream *stream)
{
	uint64_t now;

	sleep_until(end);
	pthread_mutex_lock(&lock);
	now = now_ns();
	++totals.waits;
	totals.wait_ns += end_call(&waits_in_flight, begin, now);
	count_late(begin, now);
	for (struct fd_stream *one = streams; one; one = one->next)
		if ((!stream || one == stream) && one->known_ns < end)
			one->known_ns = end;
	if (!empty_since && is_known_to_be_empty())
		empty_since = now;
	pthread_mutex_unlock(&lock);
	return 0;
}

static uint64_t end_of(const uint64_t *end)
{
	uint64_t read;

	pthread_mutex_lock(&lock);
	read = *end;
	pthread_mutex_unlock(&lock);
	return read;
}

int fdEventSynchronize(fdEvent event)
{
	const uint64_t begin = begin_call(&waits_in_flight);

	return wait_until(end_of(&event->end_ns), begin, event->stream);
}

int fdStreamSynchronize(fdStream stream)
{
	const uint64_t begin = begin_call(&waits_in_flight);

	return wait_until(end_of(&the_stream(stream)->end_ns), begin, the_stream(stream));
}

int fdCtxSynchronize(void)
{
	const uint64_t begin = begin_call(&waits_in_flight);

	return wait_until(end_of(&busy_until), begin, NULL);
}

int fdTotals(struct fdTotals *read)
{
	uint64_t now;

	pthread_mutex_lock(&lock);
	now = now_ns();
	*read = totals;
	read->now_ns = now;
	read->wait_ns += waits_in_flight.calls * now - waits_in_flight.begins;
	read->held_ns += held_in_flight.calls * now - held_in_flight.begins;
	if (totals.launches && now > busy_until)
		read->idle_ns += now - busy_until;
	if (empty_since)
		read->seen_idle_ns += now - empty_since;
	pthread_mutex_unlock(&lock);
	return 0;
}
