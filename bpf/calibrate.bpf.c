// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/*
 * Feature probes: each program is loaded alone, and its loading or its hits tell what the running
 * kernel can do. Apart from the delay engine, so that a missing feature costs a probe only.
 */
#include "kernel.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

__u64 hits;

SEC("?uprobe")
int sb_probe_perf(void *ctx)
{
	__sync_fetch_and_add(&hits, 1);
	return 0;
}

SEC("?uprobe.s")
int sb_probe_perf_sleepable(void *ctx)
{
	__sync_fetch_and_add(&hits, 1);
	return 0;
}

SEC("?uprobe.multi")
int sb_probe_multi(void *ctx)
{
	__sync_fetch_and_add(&hits, 1);
	return 0;
}

SEC("?tp_btf/sched_process_exec")
int BPF_PROG(sb_probe_tracepoint, struct task_struct *task)
{
	/* By the helper, as the engine does: lockdown in confidentiality mode takes it away. */
	__sync_fetch_and_add(&hits, BPF_CORE_READ(task, real_parent, tgid) == 0);
	return 0;
}

SEC("?iter/task")
int sb_probe_iterator(struct bpf_iter__task *ctx)
{
	if (ctx->task)
		__sync_fetch_and_add(&hits, 1);
	return 0;
}
