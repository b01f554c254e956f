// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/*
 * Progress points: counts events of the session's processes, times calls, and tells of those at a
 * device's interface. Delays nothing.
 */
#define __VMLINUX_H__ /* bpf_tracing.h: the registers have the kernel's names */
#include "kernel.h"

#include "machine.h"
#include "members.bpf.h"
#include "probe_sets.bpf.h"
#include "progress.h"
#include "schedule.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SB_MAX_PROGRESS);
	__type(key, __u32);
	__type(value, __u64);
} units SEC(".maps");

/* The same by slice of the session's schedule, a copy for each CPU (sb_cell(); its columns are the
 * points). The loader makes it larger. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sb_slice_units);
} slice_units SEC(".maps");

const volatile __u32 sb_points = 0; /* set before loading */

/* How long calls took: SB_LATENCY_BUCKETS for each progress point, see sb_latency_bucket(). */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SB_MAX_PROGRESS * SB_LATENCY_BUCKETS);
	__type(key, __u32);
	__type(value, __u64);
} latencies SEC(".maps");

/* A call that is being timed. A place in a stack tells it from every other one of its process,
 * whichever thread it runs on. */
struct sb_call {
	__u32 tgid;
	__u32 progress;
	__u64 stack; /* the goroutine whose stack it is, which may move; else 0 */
	__u64 place; /* the stack pointer at its entry; of a goroutine, the distance from its end */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SB_MAX_TIMED_CALLS);
	__type(key, struct sb_call);
	__type(value, __u64); /* when it began */
} calls SEC(".maps");

__u64 lost_calls; /* that were not timed, as the map was full or a stack could not be read */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SB_MAX_PROGRESS_SITES);
	__type(key, __u32);
	__type(value, struct sb_progress_site);
} sites SEC(".maps");

/* What happens at a device's interface. The loader makes it larger where it is needed. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} device_events SEC(".maps");

__u64 lost_device_events; /* the ring was full */

static __always_inline bool sb_is_member(void)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;

	return bpf_map_lookup_elem(&tree, &tgid) != NULL;
}

static __always_inline int sb_count(__u32 index)
{
	__u64 *count;

	if (!sb_is_member())
		return 0;
	count = bpf_map_lookup_elem(&units, &index);
	if (count)
		__sync_fetch_and_add(count, 1);
	sb_count_in_slice(&slice_units, index, sb_points);
	return 0;
}

/* Sixteen buckets for each power of two: 3 % to either side. */
static __always_inline __u32 sb_latency_bucket(__u64 ns)
{
	__u32 power = 0;

	if (ns < 16)
		return (__u32)ns;
	for (int step = 32; step; step >>= 1) {
		if (ns >> step >> 4) {
			power += step;
			ns >>= step;
		}
	}
	return (power << 4) + (__u32)ns;
}

static __always_inline __u64 sb_register(const __u64 *registers, __u8 number)
{
	return number < SB_REGISTERS ? registers[number] : 0;
}

/* Whether an indirect jump leads out of the function. */
static __always_inline bool sb_leads_out(const struct sb_progress_site *site,
					 const __u64 *registers)
{
	__u64 target = sb_register(registers, site->base) +
		       sb_register(registers, site->index) * site->scale + site->displacement;

	if (site->in_memory &&
	    bpf_probe_read_user(&target, sizeof(target), (void *)target)) {
		__sync_fetch_and_add(&lost_calls, 1);
		return false;
	}
	target -= registers[SB_IP] - site->address; /* where the file is loaded */
	for (int i = 0; i < SB_CODE_PARTS; i++)
		if (target >= site->parts[i].begin && target < site->parts[i].end)
			return false;
	return true;
}

/* Which call is at the site; false when that can't be told. */
static __always_inline bool sb_call_at(const struct sb_progress_site *site,
				       const __u64 *registers, struct sb_call *call)
{
	call->tgid = bpf_get_current_pid_tgid() >> 32;
	call->progress = site->progress;
	call->stack = 0;
	call->place = registers[SB_SP] + site->stack_used;
	if (site->is_go) {
		__u64 end;

		/* struct g begins with the bounds of its stack, and lies in a register (ABIInternal) */
		call->stack = registers[SB_GOROUTINE];
		if (bpf_probe_read_user(&end, sizeof(end), (void *)(call->stack + 8))) {
			__sync_fetch_and_add(&lost_calls, 1);
			return false;
		}
		call->place = end - call->place;
	}
	return true;
}

static __always_inline void sb_call_ends(const struct sb_call *call, __u64 now)
{
	__u64 *start = bpf_map_lookup_elem(&calls, call);
	__u64 *count;
	__u32 index;

	if (!start)
		return;
	index = call->progress * SB_LATENCY_BUCKETS + sb_latency_bucket(now - *start);
	if (bpf_map_delete_elem(&calls, call))
		return;
	count = bpf_map_lookup_elem(&latencies, &index);
	if (count)
		__sync_fetch_and_add(count, 1);
	sb_count(call->progress);
}

/* Whether the call that is at the site ends there. */
static __always_inline bool sb_is_end(const struct sb_progress_site *site, const __u64 *registers)
{
	if (site->condition != SB_ALWAYS && !sb_is_taken(site->condition, registers[SB_FLAGS]))
		return false;
	return !site->is_indirect || sb_leads_out(site, registers);
}

static __always_inline void sb_time(void *ctx, const struct sb_progress_site *site)
{
	__u64 registers[SB_REGISTERS], now = bpf_ktime_get_ns();
	struct sb_call call;

	bpf_probe_read_kernel(registers, sizeof(registers), ctx);
	if (!sb_call_at(site, registers, &call))
		return;
	if ((site->actions & SB_PROGRESS_BEGINS) && sb_is_member()) {
		__u64 start = bpf_ktime_get_ns();

		/* What lies there already was left without a return, and is void. */
		if (bpf_map_update_elem(&calls, &call, &start, BPF_ANY))
			__sync_fetch_and_add(&lost_calls, 1);
	}
	if (!(site->actions & SB_PROGRESS_ENDS) || !sb_is_end(site, registers))
		return;
	sb_call_ends(&call, site->actions & SB_PROGRESS_BEGINS ? bpf_ktime_get_ns() : now);
}

static __always_inline __u64 sb_argument(const struct sb_argument *argument,
					 const __u64 *registers, __u64 place)
{
	__u64 value = sb_register(registers, argument->number);

	if (argument->on_stack &&
	    bpf_probe_read_user(&value, sizeof(value), (void *)(place + argument->on_stack)))
		return 0;
	if (argument->within != SB_NOT_WITHIN &&
	    bpf_probe_read_user(&value, sizeof(value), (void *)(value + argument->within)))
		return 0;
	return value;
}

static __always_inline bool sb_is_there(const struct sb_argument *argument)
{
	return argument->number != SB_NO_REGISTER || argument->on_stack;
}

/* The next event, to be submitted; NULL, and counted, when there is no room. */
static __always_inline struct sb_device_event *sb_device_event(const struct sb_call *call)
{
	struct sb_device_event *event =
		bpf_ringbuf_reserve(&device_events, sizeof(*event), 0);
	__u64 id = bpf_get_current_pid_tgid();

	if (!event) {
		__sync_fetch_and_add(&lost_device_events, 1);
		return NULL;
	}
	event->tgid = id >> 32;
	event->tid = (__u32)id;
	event->progress = call->progress;
	event->place = call->place;
	event->begin_ns = 0;
	event->queue = 0;
	event->event = 0;
	event->actions = 0;
	return event;
}

static __always_inline void sb_device_begins(const struct sb_progress_site *site,
					     const __u64 *registers, const struct sb_call *call)
{
	struct sb_device_event *event;
	__u64 at;

	if (site->actions & SB_PROGRESS_LAUNCHES)
		sb_count(site->progress);
	event = sb_device_event(call);
	if (!event)
		return;
	event->actions = site->actions & SB_PROGRESS_CALLS;
	if (sb_is_there(&site->queue))
		event->actions |= SB_DEVICE_HAS_QUEUE;
	if (sb_is_there(&site->event))
		event->actions |= SB_DEVICE_HAS_EVENT;
	event->queue = sb_argument(&site->queue, registers, call->place);
	event->event = sb_argument(&site->event, registers, call->place);
	at = bpf_ktime_get_ns();
	event->at_ns = at;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	if ((site->actions & SB_PROGRESS_BEGINS) &&
	    bpf_map_update_elem(&calls, call, &at, BPF_ANY))
		__sync_fetch_and_add(&lost_calls, 1);
}

static __always_inline void sb_device_ends(const struct sb_call *call, __u64 now)
{
	__u64 *start = bpf_map_lookup_elem(&calls, call);
	struct sb_device_event *event;
	__u64 begin;

	if (!start)
		return;
	begin = *start;
	if (bpf_map_delete_elem(&calls, call))
		return;
	event = sb_device_event(call);
	if (!event)
		return;
	event->begin_ns = begin;
	event->at_ns = now;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

static __always_inline void sb_at_device_site(void *ctx, const struct sb_progress_site *site)
{
	__u64 registers[SB_REGISTERS], now = bpf_ktime_get_ns();
	struct sb_call call;

	if (!sb_is_member())
		return;
	bpf_probe_read_kernel(registers, sizeof(registers), ctx);
	if (!sb_call_at(site, registers, &call))
		return;
	if (site->actions & SB_PROGRESS_CALLS)
		sb_device_begins(site, registers, &call);
	if ((site->actions & SB_PROGRESS_DEVICE_ENDS) && sb_is_end(site, registers))
		sb_device_ends(&call, now);
}

static __always_inline int sb_at_site(void *ctx)
{
	__u64 cookie = bpf_get_attach_cookie(ctx);
	__u32 index = (__u32)cookie;
	struct sb_progress_site *site = bpf_map_lookup_elem(&sites, &index);

	if (!site || !sb_probe_counts(cookie, *(volatile __u32 *)&site->sets))
		return 0;
	if (site->actions & SB_PROGRESS_COUNTS)
		return sb_count(site->progress);
	if (site->actions & SB_PROGRESS_DEVICE)
		sb_at_device_site(ctx, site);
	else
		sb_time(ctx, site);
	return 0;
}

/* The same program for each way to attach; the loader loads the one that this kernel can take. */
SEC("?uprobe.multi")
int sb_at_site_multi(void *ctx)
{
	return sb_at_site(ctx);
}

SEC("?uprobe")
int sb_at_site_perf(void *ctx)
{
	return sb_at_site(ctx);
}
