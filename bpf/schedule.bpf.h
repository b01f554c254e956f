/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * The session's schedule (abi.h). One map for all objects of a session: the loader puts it into
 * place before it loads the others.
 */
#ifndef SPEEDBUMP_SCHEDULE_BPF_H
#define SPEEDBUMP_SCHEDULE_BPF_H

#include "kernel.h"

#include "abi.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sb_schedule);
} schedule SEC(".maps");

/* How many columns the session has; set before loading. Without any the verifier drops all code of
 * schedules, so that a hit pays nothing for it. */
const volatile __u32 sb_columns = 0;

static __always_inline struct sb_schedule *sb_the_schedule(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&schedule, &zero);
}

/*
 * How many copies of the cells there are, less one: as many as a power of two, and as CPUs unless that
 * is more memory than it is worth; then some share one. Set before loading.
 */
const volatile __u32 sb_last_ring = 0;

/* The index of this CPU's copy of a cell. */
static __always_inline __u32 sb_cell_here(__u64 slice, __u32 column, __u32 columns)
{
	return (bpf_get_smp_processor_id() & sb_last_ring) * SB_RING_SLICES * columns +
	       sb_cell(slice, column, columns);
}

/* A unit of progress, at this time, of a point that is one of so many. */
static __always_inline void sb_count_in_slice(void *units, __u32 point, __u32 points)
{
	struct sb_schedule *current;
	struct sb_slice_units *mine;
	__u64 slice, since;
	__u32 cell;

	if (!sb_columns)
		return;
	current = sb_the_schedule();
	if (!current || !current->end_slice)
		return;
	slice = sb_slice_at(current, bpf_ktime_get_ns(), &since);
	if (slice == SB_NO_SLICE)
		return;
	cell = sb_cell_here(slice, point, points);
	mine = bpf_map_lookup_elem(units, &cell);
	if (!mine)
		return;
	__sync_fetch_and_add(&mine->units, 1);
	__sync_fetch_and_add(&mine->since_ns, since);
}

#endif /* SPEEDBUMP_SCHEDULE_BPF_H */
