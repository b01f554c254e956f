// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/*
 * Progress points: counts events of the session's processes, and times calls. Delays nothing.
 */
#define __VMLINUX_H__ /* bpf_tracing.h: the registers have the kernel's names */
#include "kernel.h"

#include <bpf/usdt.bpf.h>

#include "abi.h"
#include "members.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SB_MAX_PROGRESS);
	__type(key, __u32);
	__type(value, __u64);
} units SEC(".maps");

/* How long calls took: SB_LATENCY_BUCKETS for each progress point, see sb_latency_bucket(). */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SB_MAX_PROGRESS * SB_LATENCY_BUCKETS);
	__type(key, __u32);
	__type(value, __u64);
} latencies SEC(".maps");

struct sb_call {
	__u32 thread;
	__u32 progress;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct sb_call);
	__type(value, __u64);
} calls SEC(".maps");

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
	return 0;
}

SEC("uprobe")
int sb_count_call(void *ctx)
{
	return sb_count((__u32)bpf_get_attach_cookie(ctx));
}

SEC("usdt")
int sb_count_mark(void *ctx)
{
	return sb_count((__u32)bpf_usdt_cookie(ctx));
}

/* Progress point of each system call that one counts, by its number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SB_MAX_PROGRESS);
	__type(key, __u32);
	__type(value, __u32);
} syscalls SEC(".maps");

SEC("tp_btf/sys_enter")
int BPF_PROG(sb_count_syscall, struct pt_regs *regs, long id)
{
	__u32 number = (__u32)id;
	__u32 *index = bpf_map_lookup_elem(&syscalls, &number);

	return index ? sb_count(*index) : 0;
}

SEC("uprobe")
int sb_call_begins(void *ctx)
{
	struct sb_call call = {
		.thread = (__u32)bpf_get_current_pid_tgid(),
		.progress = (__u32)bpf_get_attach_cookie(ctx),
	};
	__u64 now = bpf_ktime_get_ns();

	if (sb_is_member())
		bpf_map_update_elem(&calls, &call, &now, BPF_ANY);
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

SEC("uretprobe")
int sb_call_ends(void *ctx)
{
	struct sb_call call = {
		.thread = (__u32)bpf_get_current_pid_tgid(),
		.progress = (__u32)bpf_get_attach_cookie(ctx),
	};
	__u64 *start = bpf_map_lookup_elem(&calls, &call);
	__u64 *count;
	__u32 index;

	if (!start)
		return 0;
	index = call.progress * SB_LATENCY_BUCKETS + sb_latency_bucket(bpf_ktime_get_ns() - *start);
	bpf_map_delete_elem(&calls, &call);
	count = bpf_map_lookup_elem(&latencies, &index);
	if (count)
		__sync_fetch_and_add(count, 1);
	return sb_count(call.progress);
}
