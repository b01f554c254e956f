// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/*
 * A progress point that is a system call. Loaded once for each such point.
 */
#include "kernel.h"

#include "abi.h"
#include "members.bpf.h"
#include "schedule.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

const volatile __u32 sb_number = 0; /* of the system call; set before loading */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} units SEC(".maps");

/* As in bpf/progress.bpf.c, of one point. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sb_slice_units);
} slice_units SEC(".maps");

static __always_inline int sb_count(void)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32, zero = 0;
	__u64 *count = bpf_map_lookup_elem(&units, &zero);

	if (!count || !bpf_map_lookup_elem(&tree, &tgid))
		return 0;
	__sync_fetch_and_add(count, 1);
	sb_count_in_slice(&slice_units, 0, 1);
	return 0;
}

/* At the function of that one system call: all others, of whichever process, pay nothing. */
SEC("?fentry")
int sb_call(void *ctx)
{
	return sb_count();
}

/* Where the kernel has no such hooks: every system call of the machine comes by. */
SEC("?tp_btf/sys_enter")
int BPF_PROG(sb_any_call, struct pt_regs *regs, long id)
{
	return id == sb_number ? sb_count() : 0;
}
