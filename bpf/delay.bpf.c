// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/*
 * The delay engine: decides at each hit whether this call is to be delayed, spins, counts.
 */
#include "kernel.h"

#include "abi.h"
#include "probe_sets.bpf.h"
#include "schedule.bpf.h"
#include "tree.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SB_MAX_TARGETS);
	__type(key, __u32);
	__type(value, struct sb_target);
} targets SEC(".maps");

/* Calls of each target over the whole tree, for every=N; apart from the configuration, which
 * would else be a cache line written by every CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SB_MAX_TARGETS);
	__type(key, __u32);
	__type(value, __u64);
} sequence SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SB_MAX_COUNTS);
	__type(key, struct sb_counts_key);
	__type(value, struct sb_tally);
} tallies SEC(".maps");

/* By target: what found no place in the tallies, so that no total is ever wrong. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SB_MAX_TARGETS);
	__type(key, __u32);
	__type(value, struct sb_counts);
} overflow SEC(".maps");

/* The delays of the schedule, in ns, and what happened, in copies for CPUs (sb_cell_here()). The
 * loader makes them larger when the session has columns. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} doses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sb_slice_counts);
} slice_counts SEC(".maps");

/* Whether the program that is loaded can sleep; set before loading. */
const volatile __u32 sb_may_sleep = 0;

/* A kernel without preemption would let nobody else have the CPU for the whole spin: neither the
 * loader that wants to end it, nor the thread that holds a lock the target's others wait for. */
#define SB_YIELD_NS 1000000ULL
/* Not so near the end that the yield itself would lengthen the delay. */
#define SB_YIELD_MARGIN_NS 20000ULL

struct sb_spin {
	__u64 deadline;
	__u64 now;
	__u64 next_yield;
	__u64 stack; /* an address that the process has mapped */
	__u32 target;
	__u32 done;
};

/* Whether a spin in flight has to end before its time. */
static __always_inline bool sb_interrupted(__u32 index)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct sb_target *target;

	if (!control.armed)
		return true;
	/* A fatal signal puts SIGKILL into the pending set of every thread (complete_signal()). */
	if (task->pending.signal.sig[0] & (1UL << (SB_SIGKILL - 1)))
		return true;
	target = bpf_map_lookup_elem(&targets, &index);
	return !target || !target->enabled;
}

static long sb_look_at_area(struct task_struct *task, struct vm_area_struct *area, bool *serves)
{
	*serves = !area->vm_file && !(area->vm_flags & (VM_UFFD_MISSING | VM_UFFD_WP));
	return 0;
}

/*
 * Gives the CPU to whoever waits for it, as code in user space does at each tick: there is no
 * helper for that, but this one goes through cond_resched() in __get_user_pages(). It also waits
 * for the page, and a target may have it wait for ever (userfaultfd, a file of FUSE): only plain
 * anonymous memory serves, which needs nobody's answer; without it the CPU is kept.
 */
static __always_inline void sb_yield(struct sb_spin *spin)
{
	struct task_struct *task = bpf_get_current_task_btf();
	bool serves = false;
	__u64 word;

	bpf_find_vma(task, spin->stack, sb_look_at_area, &serves, 0);
	if (serves)
		bpf_copy_from_user_task(&word, sizeof(word), (void *)spin->stack, task, 0);
	spin->next_yield = bpf_ktime_get_ns() + SB_YIELD_NS;
}

static long sb_spin_step(__u64 i, struct sb_spin *spin)
{
	spin->now = bpf_ktime_get_ns();
	if (spin->now >= spin->deadline || ((i & 63) == 63 && sb_interrupted(spin->target))) {
		spin->done = 1;
		return 1;
	}
	if (sb_may_sleep && spin->now >= spin->next_yield &&
	    spin->deadline - spin->now > SB_YIELD_MARGIN_NS)
		sb_yield(spin);
	return 0;
}

/* bpf_loop() stops at 2^23 turns, well before 10 s: hence loops in a loop. */
static long sb_spin_stretch(__u64 i, struct sb_spin *spin)
{
	bpf_loop(1 << 20, sb_spin_step, spin, 0);
	return spin->done ? 1 : 0;
}

/* Spins until so long after `start`, or until it has to end: how long that was. */
static __always_inline __u64 sb_spin_for(void *ctx, __u32 index, __u64 start, __u64 length)
{
	struct sb_spin spin = {
		.deadline = start + length,
		.next_yield = start + SB_YIELD_NS,
		.stack = ((struct pt_regs *)ctx)->sp,
		.target = index,
	};

	bpf_loop(1 << 11, sb_spin_stretch, &spin, 0);
	return spin.now - start;
}

/*
 * The counters of a process that the target is for, NULL for any other process. The tree is only
 * asked when somebody has left it since the process was last found there: that look-up is a fifth
 * of what a hit costs here.
 */
static __always_inline struct sb_counts *sb_counts_of(__u32 tgid, __u32 index,
						      struct sb_target *target)
{
	struct sb_counts_key key = { .tgid = tgid, .target = index };
	struct sb_tally *found = bpf_map_lookup_elem(&tallies, &key);
	__u64 now = *(volatile __u64 *)&state.departures + 1;
	struct sb_member *member;

	if (found && found->verified == now)
		return &found->counts;

	member = bpf_map_lookup_elem(&tree, &tgid);
	if (!member || !(target->root_mask & member->roots))
		return NULL;
	if (!found) {
		struct sb_tally zero = {};

		bpf_map_update_elem(&tallies, &key, &zero, BPF_NOEXIST);
		found = bpf_map_lookup_elem(&tallies, &key);
	}
	if (found) {
		found->verified = now;
		return &found->counts;
	}
	return bpf_map_lookup_elem(&overflow, &index);
}

/* An entry of a table by kind of site. */
static __always_inline __u64 sb_of_kind(const __u64 *table, __u64 kind)
{
	/* Else compilers (clang 19) move the check to where the verifier has forgotten it. */
	asm volatile("" : "+r"(kind));
	return kind < SB_SITE_KINDS ? table[kind] : 0;
}

/*
 * What a delayed hit takes besides its spin. An interrupt (the timer's tick) that falls into the
 * spin costs nothing, unless it goes on beyond the spin's end: the likelier, the longer the spin,
 * up to the length of an interrupt.
 */
static __always_inline __u64 sb_outside(__u64 kind, __u64 delay)
{
	__u64 length = delay < SB_LATE_DELAY_NS ? delay : SB_LATE_DELAY_NS;

	return sb_of_kind(control.outside_ns, kind) + control.late_ns * length / SB_LATE_DELAY_NS;
}

/*
 * The counts of the slice that it is now, NULL when there is none. The hit is counted there, and
 * `delay` is the one that its column has.
 */
static __always_inline struct sb_slice_counts *sb_scheduled(__u64 now, __u32 column, __u64 *delay)
{
	struct sb_schedule *current = sb_the_schedule();
	struct sb_slice_counts *counts;
	__u64 slice, since, *dose;
	__u32 cell;

	*delay = 0;
	if (!current)
		return NULL;
	slice = sb_slice_at(current, now, &since);
	if (slice == SB_NO_SLICE)
		return NULL;
	cell = sb_cell_here(slice, column, current->columns);
	counts = bpf_map_lookup_elem(&slice_counts, &cell);
	cell = sb_cell(slice, column, current->columns);
	dose = bpf_map_lookup_elem(&doses, &cell);
	if (!counts || !dose)
		return NULL;
	__sync_fetch_and_add(&counts->hits, 1);
	__sync_fetch_and_add(&counts->since_ns, since);
	if (*dose)
		*delay = sb_within_schedule(current, now, *dose);
	return counts;
}

static __always_inline int sb_hit(void *ctx)
{
	struct sb_slice_counts *of_slice = NULL;
	__u64 start, delay, outside, measured;
	__u64 cookie = bpf_get_attach_cookie(ctx);
	__u32 index = (__u32)cookie;
	__u64 kind = (cookie >> 32) & 0xff;
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct sb_target *target;
	struct sb_counts *mine;

	if (!control.armed)
		return 0;
	target = bpf_map_lookup_elem(&targets, &index);
	if (!target || !target->enabled)
		return 0;
	if (!sb_probe_counts(cookie, *(volatile __u32 *)&target->sets))
		return 0;

	mine = sb_counts_of(tgid, index, target);
	if (!mine)
		return 0;
	/* Per CPU, but a sleepable program can be preempted in the middle of an addition. */
	__sync_fetch_and_add(&mine->hits, 1);

	delay = target->delay_ns;
	if (!delay)
		return 0;
	/* What came before this is calibrated with what lies outside the program. */
	start = bpf_ktime_get_ns();
	if (target->start_ns && start < target->start_ns)
		return 0;
	if (target->end_ns && start >= target->end_ns)
		return 0;
	if (sb_columns && (delay & SB_SCHEDULED)) {
		of_slice = sb_scheduled(start, (__u32)delay, &delay);
		if (!of_slice)
			return 0;
	}
	if (target->every > 1) {
		__u64 *calls = bpf_map_lookup_elem(&sequence, &index);

		if (!calls || (__sync_fetch_and_add(calls, 1) + 1) % target->every) {
			if (!of_slice)
				return 0;
			delay = 0;
		}
	}
	if (delay > SB_MAX_DELAY_NS)
		delay = SB_MAX_DELAY_NS;

	/* Without branches, so that a hit of a schedule takes as long without a delay. */
	__sync_fetch_and_add(&mine->delays, !!delay);
	__sync_fetch_and_add(&mine->requested_ns, delay);
	if (sb_columns && of_slice)
		__sync_fetch_and_add(&of_slice->delays, !!delay);
	/* A delay of the schedule comes on top of what a hit without one takes. */
	outside = of_slice ? 0 : sb_outside(kind, delay);
	if (of_slice || delay > outside)
		measured = sb_spin_for(ctx, index, start, delay - outside) + outside;
	else
		measured = sb_of_kind(control.floor_ns, kind);
	__sync_fetch_and_add(&mine->measured_ns, delay ? measured : 0);
	if (sb_columns && of_slice) {
		__sync_fetch_and_add(&of_slice->measured_ns, delay ? measured : 0);
		__sync_fetch_and_add(&of_slice->undelayed_ns, delay ? 0 : measured);
	}
	return 0;
}

/* The same program for each way to attach; the loader loads the one that this kernel can take. */
SEC("?uprobe.multi.s")
int sb_hit_multi_sleepable(void *ctx)
{
	return sb_hit(ctx);
}

SEC("?uprobe.multi")
int sb_hit_multi(void *ctx)
{
	return sb_hit(ctx);
}

SEC("?uprobe.s")
int sb_hit_perf_sleepable(void *ctx)
{
	return sb_hit(ctx);
}

SEC("?uprobe")
int sb_hit_perf(void *ctx)
{
	return sb_hit(ctx);
}
